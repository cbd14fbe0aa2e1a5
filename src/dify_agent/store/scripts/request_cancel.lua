-- ARGV: intent, retention. Returns {'missing'}, {status} or {'running', owner}. The first intent wins.
local stored = redis.call('GET', RECORD)
if not stored then return {'missing'} end
local status = status_of(stored)
if status ~= 'running' then return {status} end
if not has_intent() then
  redis.call('XADD', INTENT, 'MAXLEN', '=', 1, '*', 'payload', ARGV[1])
  keep(ARGV[2], RECORD, EVENTS, OWNER, INTENT)
end
return {'running', redis.call('GET', OWNER) or ''}
