-- Packets and bytes of each minute
select date_trunc('minute', time) as minute, count(*) as packets, sum(length) as bytes
from packets
group by 1
order by 1
