// Calls functions with Supabase's own client and prints what its user sees.
// Reads {url, key, calls: [{function, args}]} from standard input.
const { PostgrestClient } = require('@supabase/postgrest-js')

let input = ''
process.stdin.on('data', (part) => { input += part })
process.stdin.on('end', async () => {
  const { url, key, calls } = JSON.parse(input)
  const client = new PostgrestClient(url + '/rest/v1', {
    schema: 'public',
    headers: key ? { apikey: key, Authorization: 'Bearer ' + key } : {},
  })
  const seen = []
  for (const call of calls) {
    const { data, error, status } = await client.rpc(call.function, call.args)
    seen.push({ data, status, error: error && { code: error.code, message: error.message, details: error.details, hint: error.hint } })
  }
  process.stdout.write(JSON.stringify(seen))
})
