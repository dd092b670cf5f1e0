-- 2 KB chats, 64 of them in turn; one line of JSON at the end.
local filler = string.rep("The quick brown fox jumps over the lazy dog while the river flows gently. ", 25)
local requests = {}

function init(args)
  for i = 1, 64 do
    local system = string.format('{"role":"system","content":"You help user %06d."}', i)
    local body = '{"model":"mock","messages":[' .. system .. ',{"role":"user","content":"' .. filler:sub(1, 1880) ..
      '"}],"max_tokens":16,"stream":false}'
    requests[i] = wrk.format("POST", "/v1/chat/completions", {["Content-Type"] = "application/json"}, body)
  end
end

local sent = 0
function request()
  sent = sent + 1
  return requests[sent % 64 + 1]
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests":%d,"seconds":%f,"p50_us":%f,"p99_us":%f,"failed":%d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50), latency:percentile(99),
    errors.connect + errors.read + errors.write + errors.timeout + errors.status))
end
