-- Pairs of addresses with the most bytes
select sourceAddress as source, destinationAddress as destination, count(*) as flows,
  sum(packetDeltaCount + reversePacketDeltaCount) as packets,
  sum(octetDeltaCount + reverseOctetDeltaCount) as bytes
from flows
group by 1, 2
order by bytes desc, source, destination
limit 20
