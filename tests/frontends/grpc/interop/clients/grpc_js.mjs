// grpc-js: node grpc_js.mjs ADDRESS PROTO
import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import { ECHOED, ECHOED_BIN, REQUEST_SIZES, SIZES, TEXT, fails, run } from './cases.mjs'

const require = createRequire(`${process.env.INTEROP_CLIENTS}/npm/`)
const grpc = require('@grpc/grpc-js')
const definition = require('@grpc/proto-loader').loadSync(process.argv[3])
const { TestService, UnimplementedService } = grpc.loadPackageDefinition(definition).grpc.testing
const credentials = grpc.credentials.createInsecure()
const client = new TestService(process.argv[2], credentials)
const other = new UnimplementedService(process.argv[2], credentials)
const { status } = grpc

const unary = (request, metadata = new grpc.Metadata(), options = {}, method = 'UnaryCall', of = client) =>
  new Promise((resolve, reject) => {
    const seen = {}
    const call = of[method](request, metadata, options, (error, response) =>
      error ? reject(error) : setImmediate(() => resolve({ response, ...seen })))
    call.on('metadata', (initial) => { seen.initial = initial })
    call.on('status', ({ metadata: trailing }) => { seen.trailing = trailing })
  })
const ended = (call) => new Promise((resolve, reject) => {
  const responses = []
  call.on('data', (response) => responses.push(response.payload.body.length))
  call.on('error', reject)
  call.on('end', () => resolve(responses))
})
const first = (call) => new Promise((resolve, reject) => { call.once('data', resolve); call.once('error', reject) })
const output = (size, sent, intervalUs = 0) =>
  ({ responseParameters: [{ size, intervalUs }], payload: { body: Buffer.alloc(sent) } })

await run({
  async empty_unary() {
    assert.deepEqual((await unary({}, undefined, {}, 'EmptyCall')).response, {})
  },
  async large_unary() {
    const request = { responseSize: 314159, payload: { body: Buffer.alloc(271828) } }
    assert.equal((await unary(request)).response.payload.body.length, 314159)
  },
  async client_compressed_unary() {
    const zipped = new TestService(process.argv[2], credentials, { 'grpc.default_compression_algorithm': 2 })
    const request = { responseSize: 9, payload: { body: Buffer.alloc(271828) } }
    assert.equal((await unary(request, undefined, {}, 'UnaryCall', zipped)).response.payload.body.length, 9)
    zipped.close()
  },
  async client_streaming() {
    const size = await new Promise((resolve, reject) => {
      const call = client.StreamingInputCall((error, response) => error ? reject(error) : resolve(response.aggregatedPayloadSize))
      for (const size of REQUEST_SIZES) call.write({ payload: { body: Buffer.alloc(size) } })
      call.end()
    })
    assert.equal(size, 74922)
  },
  async server_streaming() {
    const request = { responseParameters: SIZES.map((size) => ({ size })) }
    assert.deepEqual(await ended(client.StreamingOutputCall(request)), SIZES)
  },
  async ping_pong() {
    const call = client.FullDuplexCall()
    for (const [i, size] of SIZES.entries()) {
      call.write(output(size, REQUEST_SIZES[i]))
      assert.equal((await first(call)).payload.body.length, size)
    }
    call.end()
    assert.deepEqual(await ended(call), [])
  },
  async empty_stream() {
    const call = client.FullDuplexCall()
    call.end()
    assert.deepEqual(await ended(call), [])
  },
  async custom_metadata() {
    const metadata = new grpc.Metadata()
    metadata.set(ECHOED, 'test_initial_metadata_value')
    metadata.set(ECHOED_BIN, Buffer.from([0xab, 0xab, 0xab]))
    const { initial, trailing } = await unary({ responseSize: 1 }, metadata)
    assert.deepEqual(initial.get(ECHOED), ['test_initial_metadata_value'])
    assert.deepEqual(trailing.get(ECHOED_BIN), [Buffer.from([0xab, 0xab, 0xab])])
  },
  async status_code_and_message() {
    const responseStatus = { code: 2, message: 'test status message' }
    await fails(unary({ responseStatus }), status.UNKNOWN, responseStatus.message)
    const call = client.FullDuplexCall()
    call.write({ responseStatus })
    await fails(ended(call), status.UNKNOWN, responseStatus.message)
  },
  async special_status_message() {
    await fails(unary({ responseStatus: { code: 2, message: TEXT } }), status.UNKNOWN, TEXT)
  },
  async unimplemented_method() {
    await fails(unary({}, undefined, {}, 'UnimplementedCall'), status.UNIMPLEMENTED)
  },
  async unimplemented_service() {
    await fails(unary({}, undefined, {}, 'UnimplementedCall', other), status.UNIMPLEMENTED)
  },
  async cancel_after_begin() {
    const call = new Promise((resolve, reject) => {
      client.StreamingInputCall((error) => error ? reject(error) : resolve()).cancel()
    })
    await fails(call, status.CANCELLED)
  },
  async cancel_after_first_response() {
    const call = client.FullDuplexCall()
    call.write(output(31415, 27182))
    assert.equal((await first(call)).payload.body.length, 31415)
    const end = ended(call)
    call.cancel()
    await fails(end, status.CANCELLED)
  },
  async timeout_on_sleeping_server() {
    const call = client.FullDuplexCall({ deadline: Date.now() + 50 })
    call.write(output(31415, 8, 1e9))
    await fails(ended(call), status.DEADLINE_EXCEEDED)
  },
  async many_calls_at_once() {
    const calls = Array.from({ length: 200 }, () => unary({ responseSize: 100 }))
    for (const { response } of await Promise.all(calls)) assert.equal(response.payload.body.length, 100)
  },
})
process.exit()  // the library leaves a call open that was cancelled before its head was sent
