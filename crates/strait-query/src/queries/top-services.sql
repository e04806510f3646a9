-- Services (protocol and port) with the most bytes
select protocolIdentifier as protocol, destinationTransportPort as port, count(*) as flows,
  count(distinct sourceAddress) as clients, count(distinct destinationAddress) as servers,
  sum(octetDeltaCount + reverseOctetDeltaCount) as bytes
from flows
group by 1, 2
order by bytes desc, protocol, port
limit 20
