-- ARGV: record, payload, owner's clock in ms, maximal length, retention.
-- Returns {'missing'}, {'unapplied', status} or {'applied', event id}; the order of the checks is the contract (protocol 5.5).
local stored = redis.call('GET', RECORD)
if not stored then return {'missing'} end
if stored == ARGV[1] then return {'applied', top_of(EVENTS)} end
local status = status_of(stored)
if status ~= 'running' then return {'unapplied', status} end
if has_intent() then return {'unapplied', 'running'} end
return {'applied', seal(ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])}
