-- ARGV and replies as finalize.lua; here an intent must exist, and it is deleted.
local stored = redis.call('GET', RECORD)
if not stored then return {'missing'} end
if stored == ARGV[1] then return {'applied', top_of(EVENTS)} end
local status = status_of(stored)
if status ~= 'running' then return {'unapplied', status} end
if not has_intent() then return {'unapplied', 'running'} end
if ARGV[6] and top_of(EVENTS) ~= ARGV[6] then return {'gap'} end
local id = seal(ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], 7)
redis.call('DEL', INTENT)
return {'applied', id}
