-- Cycles through the body files of a directory, each thread from its own offset, and prints a
-- summary as JSON. init formats the requests once, so that the client's cost is independent of the
-- bodies.
local requests, at, thread_count = {}, 0, 0
function setup(thread)
  thread:set("offset", thread_count)
  thread_count = thread_count + 1
end
function init(args)
  local dir, n = args[1], tonumber(args[2])
  for i = 0, n - 1 do
    local f = assert(io.open(string.format("%s/%d.json", dir, i), "rb"))
    local body = f:read("*a")
    f:close()
    requests[i] = wrk.format("POST", nil, {["Content-Type"] = "application/json"}, body)
  end
  count = n
  at = math.floor(offset * n / 2)
end
function request()
  at = (at + 1) % count
  return requests[at]
end
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('{"requests":%d,"duration_us":%d,"p50_us":%d,"p99_us":%d,"errors":%d}\n', summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), e.connect + e.read + e.write + e.status + e.timeout))
end
