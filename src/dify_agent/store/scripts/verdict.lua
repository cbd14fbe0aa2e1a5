-- ARGV: judged owner ('' for a run without one), failure's record and payload, cancellation's record and payload
-- (both '' when no intent was seen), judge's clock in ms, maximal length, retention.
-- Returns {'missing'}, {'unapplied', status}, {'intent'} (one has come meanwhile) or {'applied', event id, status}.
local stored = redis.call('GET', RECORD)
if not stored then return {'missing'} end
if stored == ARGV[2] then return {'applied', top_of(EVENTS), 'failed'} end
if stored == ARGV[4] then return {'applied', top_of(EVENTS), 'cancelled'} end
local status = status_of(stored)
if status ~= 'running' or (redis.call('GET', OWNER) or '') ~= ARGV[1] then return {'unapplied', status} end
if not has_intent() then
  return {'applied', seal(ARGV[2], ARGV[3], ARGV[6], ARGV[7], ARGV[8]), 'failed'}
end
if ARGV[4] == '' then return {'intent'} end
local id = seal(ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8])
redis.call('DEL', INTENT)
return {'applied', id, 'cancelled'}
