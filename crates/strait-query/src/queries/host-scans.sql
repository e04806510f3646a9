-- Sources that try a port of at least 20 destinations, most of which send nothing back
select sourceAddress as source, protocolIdentifier as protocol, destinationTransportPort as port,
  count(distinct destinationAddress) as destinations,
  sum(case when reversePacketDeltaCount = 0 then 1 else 0 end) as unanswered, count(*) as flows
from flows
group by 1, 2, 3
having count(distinct destinationAddress) >= 20
  and 2 * sum(case when reversePacketDeltaCount = 0 then 1 else 0 end) > count(*)
order by destinations desc, source
limit 20
