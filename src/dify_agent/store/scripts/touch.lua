-- ARGV: retention. Gives a live run's keys a new TTL; those that are gone stay gone.
keep(ARGV[1], RECORD, EVENTS, OWNER, INTENT)
return 'touched'
