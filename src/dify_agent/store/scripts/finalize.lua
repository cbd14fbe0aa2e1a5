-- ARGV: record, payload, owner's clock in ms, maximal length, retention; then, of an owner that knows its log, the expected
-- top and the ids and payloads of its last events, ascending.
-- Returns {'missing'}, {'unapplied', status}, {'gap'} or {'applied', event id}; the order of the checks is the contract
-- (protocol 5.5). Only 'applied' has written.
local stored = redis.call('GET', RECORD)
if not stored then return {'missing'} end
if stored == ARGV[1] then return {'applied', top_of(EVENTS)} end
local status = status_of(stored)
if status ~= 'running' then return {'unapplied', status} end
if has_intent() then return {'unapplied', 'running'} end
if ARGV[6] and top_of(EVENTS) ~= ARGV[6] then return {'gap'} end
return {'applied', seal(ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], 7)}
