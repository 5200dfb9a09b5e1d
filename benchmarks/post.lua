-- wrk script: POST the bytes of one file, compare every reply with those of another.
-- wrk ... -s post.lua URL -- BODY_FILE REPLY_FILE        prints one JSON line last

local function read(path)
  local file = assert(io.open(path, "rb"))
  local bytes = file:read("*a")
  file:close()
  return bytes
end

local threads = {}

function setup(thread)
  table.insert(threads, thread)
end

function init(args)
  wrong = 0
  expected = read(args[2])
  wrk.method = "POST"
  wrk.headers["content-type"] = "application/json"
  wrk.body = read(args[1])
  post = wrk.format()
end

function request()
  return post
end

function response(status, headers, body)
  if status ~= 200 or body ~= expected then
    wrong = wrong + 1
  end
end

function done(summary, latency, requests)
  local errors = summary.errors
  local bad = errors.connect + errors.read + errors.write + errors.timeout
  for _, thread in ipairs(threads) do
    bad = bad + thread:get("wrong")
  end
  print(string.format(
    '{"rate": %.1f, "p50_us": %d, "p99_us": %d, "wrong": %d}',
    summary.requests / summary.duration * 1e6,
    latency:percentile(50), latency:percentile(99), bad))
end
