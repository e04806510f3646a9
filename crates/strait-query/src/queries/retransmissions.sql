-- Paths on which TCP sends the most segments again
select sourceAddress as source, destinationAddress as destination,
  sum(packetDeltaCount + reversePacketDeltaCount) as packets,
  sum(cast(retransmitted as bigint)) as sent_again,
  sum(cast(reverseRetransmitted as bigint)) as received_again,
  round(100.0 * sum(cast(retransmitted as bigint) + cast(reverseRetransmitted as bigint))
    / sum(packetDeltaCount + reversePacketDeltaCount), 2) as percent
from flows
where protocolIdentifier = 6
group by 1, 2
having sum(cast(retransmitted as bigint) + cast(reverseRetransmitted as bigint)) > 0
order by percent desc, packets desc, source, destination
limit 20
