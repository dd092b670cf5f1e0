-- 2 KB chats whose last message nobody has seen; one line of JSON at the end.
-- Arguments: file of sentences, number of the first message.
-- The messages are those of texts.py.
local CHARS = 1880
local sentences = {}
local number

function init(args)
  for line in io.lines(args[1]) do sentences[#sentences + 1] = line end
  number = tonumber(args[2])
end

local function message()
  local parts = {string.format("Question %d.", number)}
  local length, i = #parts[1], 0
  while length < CHARS do
    parts[#parts + 1] = sentences[(number * 131 + i * 37) % #sentences + 1]
    length = length + 1 + #parts[#parts]
    i = i + 1
  end
  return table.concat(parts, " "):sub(1, CHARS)
end

local head = {["Content-Type"] = "application/json"}
function request()
  local system = string.format('{"role":"system","content":"You help user %06d."}', number % 64)
  local body = '{"model":"mock","messages":[' .. system .. ',{"role":"user","content":"' .. message() ..
    '"}],"max_tokens":16,"stream":false}'
  number = number + 1
  return wrk.format("POST", "/v1/chat/completions", head, body)
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests":%d,"seconds":%f,"p50_us":%f,"p99_us":%f,"failed":%d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50), latency:percentile(99),
    errors.connect + errors.read + errors.write + errors.timeout + errors.status))
end
