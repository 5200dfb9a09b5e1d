// Connect's clients: node connect.mjs TRANSPORT URL DESCRIPTORS
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import { ECHOED, ECHOED_BIN, SIZES, TEXT, fails, run } from './cases.mjs'

const require = createRequire(`${process.env.INTEROP_CLIENTS}/npm/`)
const load = (name) => import(pathToFileURL(require.resolve(name)).href).then((module) => module.default ?? module)
const { createFileRegistry, fromBinary } = await load('@bufbuild/protobuf')
const { FileDescriptorSetSchema } = await load('@bufbuild/protobuf/wkt')
const { Code, ConnectError, createClient } = await load('@connectrpc/connect')
const node = await load('@connectrpc/connect-node')
const web = await load('@connectrpc/connect-web')
const [, , name, baseUrl, path] = process.argv
const registry = createFileRegistry(fromBinary(FileDescriptorSetSchema, readFileSync(path)))
const TestService = registry.getService('grpc.testing.TestService')
const Unimplemented = registry.getService('grpc.testing.UnimplementedService')

const transports = {
  'connect-http1': () => node.createConnectTransport({ baseUrl, httpVersion: '1.1' }),
  'connect-http2': () => node.createConnectTransport({ baseUrl, httpVersion: '2' }),
  'connect-binary': () => node.createConnectTransport({ baseUrl, httpVersion: '1.1', useBinaryFormat: true }),
  'connect-gzip': () => node.createConnectTransport({ baseUrl, httpVersion: '1.1', sendCompression: node.compressionGzip, compressMinBytes: 0 }),
  'connect-fetch': () => web.createConnectTransport({ baseUrl }),
  'grpc-web-http1': () => node.createGrpcWebTransport({ baseUrl, httpVersion: '1.1' }),
  'grpc-web-http2': () => node.createGrpcWebTransport({ baseUrl, httpVersion: '2' }),
  'grpc-web-gzip': () => node.createGrpcWebTransport({ baseUrl, httpVersion: '1.1', sendCompression: node.compressionGzip, compressMinBytes: 0 }),
  'grpc-web-fetch': () => web.createGrpcWebTransport({ baseUrl }),
  grpc: () => node.createGrpcTransport({ baseUrl }),
}
const transport = transports[name]()
const client = createClient(TestService, transport)
const other = createClient(Unimplemented, transport)
const sizesOf = async (responses) => {
  const sizes = []
  for await (const { payload } of responses) sizes.push(payload.body.length)
  return sizes
}
const output = (size, intervalUs = 0) => ({ responseParameters: [{ size, intervalUs }] })

const cases = {
  async empty_unary() {
    assert.equal((await client.emptyCall({})).$typeName, 'grpc.testing.Empty')
  },
  async large_unary() {
    const request = { responseSize: 314159, payload: { body: new Uint8Array(271828) } }
    assert.equal((await client.unaryCall(request)).payload.body.length, 314159)
  },
  async custom_metadata() {
    const headers = { [ECHOED]: 'test_initial_metadata_value', [ECHOED_BIN]: 'q6ur' }
    let head, trailers
    await client.unaryCall({ responseSize: 1 }, {
      headers,
      onHeader: (fields) => { head = fields },
      onTrailer: (fields) => { trailers = fields },
    })
    assert.equal(head.get(ECHOED), 'test_initial_metadata_value')
    assert.equal(trailers.get(ECHOED_BIN), 'q6ur')
  },
  async status_code_and_message() {
    const responseStatus = { code: 2, message: 'test status message' }
    await fails(client.unaryCall({ responseStatus }), Code.Unknown, responseStatus.message)
  },
  async special_status_message() {
    await fails(client.unaryCall({ responseStatus: { code: 2, message: TEXT } }), Code.Unknown, TEXT)
  },
  async all_status_codes() {
    for (let code = 1; code <= 16; code++) {
      await fails(client.unaryCall({ responseStatus: { code, message: 'x' } }), code, 'x')
    }
  },
  async unimplemented_method() {
    await fails(client.unimplementedCall({}), Code.Unimplemented)
  },
  async unimplemented_service() {
    await fails(other.unimplementedCall({}), Code.Unimplemented)
  },
  async cancel_after_begin() {
    const controller = new AbortController()
    const call = client.unaryCall({ responseSize: 1000000 }, { signal: controller.signal })
    controller.abort()
    await fails(call, Code.Canceled)
  },
  async many_calls_at_once() {
    const calls = Array.from({ length: 100 }, () => client.unaryCall({ responseSize: 100 }))
    for (const { payload } of await Promise.all(calls)) assert.equal(payload.body.length, 100)
  },
}
if (!name.startsWith('connect')) {
  Object.assign(cases, {
    async server_streaming() {
      const request = { responseParameters: SIZES.map((size) => ({ size })) }
      assert.deepEqual(await sizesOf(client.streamingOutputCall(request)), SIZES)
    },
    async status_of_a_stream() {
      const request = { responseStatus: { code: 5, message: 'no' } }
      await fails(sizesOf(client.streamingOutputCall(request)), Code.NotFound, 'no')
    },
    async timeout_on_sleeping_server() {
      await fails(sizesOf(client.streamingOutputCall(output(1, 1e9), { timeoutMs: 50 })), Code.DeadlineExceeded)
    },
    async cancel_after_first_response() {
      const controller = new AbortController()
      const request = { responseParameters: [{ size: 1 }, { size: 1, intervalUs: 1e9 }] }
      const call = async () => {
        for await (const _ of client.streamingOutputCall(request, { signal: controller.signal })) controller.abort()
      }
      await fails(call(), Code.Canceled)
    },
  })
} else {
  cases.streams_are_refused = () =>
    fails(sizesOf(client.streamingOutputCall(output(1))), Code.Unimplemented, undefined)
}
await run(cases)
process.exit()
