-- Sources that try at least 20 ports of a destination
select sourceAddress as source, destinationAddress as destination, protocolIdentifier as protocol,
  count(distinct destinationTransportPort) as ports, min(flowStartNanoseconds) as first_seen,
  max(flowStartNanoseconds) as last_seen
from flows
where destinationTransportPort is not null
group by 1, 2, 3
having count(distinct destinationTransportPort) >= 20
order by ports desc, source, destination
limit 20
