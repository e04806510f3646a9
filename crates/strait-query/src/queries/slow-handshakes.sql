-- TCP services with the longest handshakes, in milliseconds
select destinationAddress as destination, destinationTransportPort as port, count(*) as handshakes,
  round(min(handshakeNanoseconds) / 1e6, 3) as fastest_ms,
  round(avg(handshakeNanoseconds) / 1e6, 3) as mean_ms,
  round(max(handshakeNanoseconds) / 1e6, 3) as slowest_ms
from flows
where handshakeNanoseconds is not null and (tcpControlBits & 2) = 2 -- the first row of a flow
group by 1, 2
order by slowest_ms desc, destination, port
limit 20
