-- Writes an entry that ends at a given instant of this server's clock, as one SET with its lifetime.
-- KEYS[1]: the entry. ARGV[1]: its bytes. ARGV[2]: when it ends, in milliseconds, by the clock that look.lua read.
-- ARGV[3]: how long it may live at most, in milliseconds.
local time = redis.call('TIME')
local left = ARGV[2] - (time[1] * 1000 + math.floor(time[2] / 1000))
-- It came too late, or the clock was set back on its way.
if left < 1 or left > tonumber(ARGV[3]) then
    return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', left)
return 1
