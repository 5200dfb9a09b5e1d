// The cases of gRPC's interoperation tests, for clients in JavaScript: each runs by its name and prints it.
import assert from 'node:assert/strict'

export const SIZES = [31415, 9, 2653, 58979]
export const REQUEST_SIZES = [27182, 8, 1828, 45904]
export const TEXT = '\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n'
export const ECHOED = 'x-grpc-test-echo-initial'
export const ECHOED_BIN = 'x-grpc-test-echo-trailing-bin'

// Run the functions of `cases`, and print the name of each that passes.
export async function run(cases) {
  for (const [name, test] of Object.entries(cases)) {
    try {
      await test()
      console.log(`passed ${name}`)
    } catch (error) {
      console.log(`failed ${name}: ${error.stack}`)
      process.exitCode = 1
    }
  }
}

// Assert that a call ends with the number of a status, and with `text` if that is given.
export async function fails(call, code, text) {
  const error = await call.then(() => assert.fail('the call succeeded'), (error) => error)
  assert.equal(error.code, code, error.stack)
  if (text !== undefined) assert.equal(error.rawMessage ?? error.details, text)
}
