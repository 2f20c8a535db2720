-- What is remembered, for how much longer, and what time it is here. Writes nothing.
-- KEYS[1]: the entry. ARGV[1]: a number, given back, so that a reply cannot be taken for another one's.
-- ARGV[2]: how many bytes of a value are looked at, counted from the end of the first; one more than an entry has.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local value = redis.pcall('GETRANGE', KEYS[1], 0, ARGV[2])
if value == '' then
    return {ARGV[1], now}
end
if type(value) ~= 'string' then
    -- Whoever may not read, or cannot, must hear of it: it would take every entry for something odd.
    if not string.find(value.err, 'WRONGTYPE', 1, true) then
        return value
    end
    -- Another type than a string is no entry.
    value = ''
end
return {ARGV[1], now, value, redis.call('PTTL', KEYS[1])}
