// A web page without a browser: it runs the files of docs/SUPABASE.md with the
// official client, and a channel that calls back when it is told to.
//
// node page.mjs DIRECTORY-OF-THE-CLIENT URL: reads commands and writes answers,
// a JSON value a line.
import { createRequire } from 'node:module'
import { createInterface } from 'node:readline'
import { approve, plan } from './approve.mjs'
import { deploy } from './deploy.mjs'
import { followLog } from './follow-log.mjs'

const [client, url] = process.argv.slice(2)
const { PostgrestClient } = createRequire(client + '/')('@supabase/postgrest-js')

const listeners = []
const channel = {
  on(_kind, _filter, callback) { listeners.push(callback); return channel },
  subscribe(callback) { listeners.push(callback); return channel },
}
const rest = new PostgrestClient(url)
const supabase = { from: (table) => rest.from(table), rpc: (name, args) => rest.rpc(name, args), channel: () => channel, removeChannel: () => listeners.splice(0) }
const say = (value) => console.log(JSON.stringify(value))
const commands = {
  deploy: ([cluster, snapshot, id]) => deploy(supabase, cluster, snapshot, id).then(
    (deployed) => say({ deployed }), ({ message, reason, retry }) => say({ refused: { message, reason, retry } })),
  plan: ([id]) => plan(supabase, id).then((plan) => say({ plan }), ({ message }) => say({ error: message })),
  approve: ([id, digest]) => approve(supabase, id, digest).then(
    (approved) => say({ approved }), ({ message, reason, retry }) => say({ refused: { message, reason, retry } })),
  follow: ([id, every]) => followLog(supabase, id, {
    every, onRows: (rows) => say({ rows }), onEnd: (ended) => say({ ended }), onError: ({ message }) => say({ error: message }),
  }),
  events: ([n]) => { for (let i = 0; i < n; i++) for (const callback of [...listeners]) callback() },
}
for await (const line of createInterface({ input: process.stdin })) {
  const [command, ...args] = JSON.parse(line)
  commands[command](args)
}
