-- TCP connections without an answer (no packet), or refused (RST without SYN)
select destinationAddress as destination, destinationTransportPort as port, count(*) as attempts,
  sum(case when reversePacketDeltaCount = 0 then 1 else 0 end) as unanswered,
  sum(case when reversePacketDeltaCount > 0 then 1 else 0 end) as refused,
  count(distinct sourceAddress) as sources
from flows
where protocolIdentifier = 6 and tcpControlBits & 2 = 2
  and (reversePacketDeltaCount = 0 or reverseTcpControlBits & 6 = 4)
group by 1, 2
order by attempts desc, destination, port
limit 20
