-- Receivers that stopped their senders by a receive window of 0
select receiver, sender, sum(cast(packets as bigint)) as zero_windows, count(*) as flows
from (
  select sourceAddress as receiver, destinationAddress as sender, zeroWindows as packets
  from flows where zeroWindows > 0
  union all
  select destinationAddress, sourceAddress, reverseZeroWindows
  from flows where reverseZeroWindows > 0
) as stops
group by 1, 2
order by zero_windows desc, receiver, sender
limit 20
