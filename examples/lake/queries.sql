-- Queries of the tables of all sensors, for DuckDB, ClickHouse and Spark. Times are nanoseconds since 1970: the views that
-- each program makes convert them, as these engines have no common functions for times. See also `strait query --list`.

-- top-talkers: pairs of addresses with the most bytes
select sourceAddress as source, destinationAddress as destination, count(*) as flows,
  sum(packetDeltaCount + reversePacketDeltaCount) as packets,
  sum(octetDeltaCount + reverseOctetDeltaCount) as bytes
from flows
group by 1, 2
order by bytes desc, source, destination
limit 20;

-- new-destinations: destinations that first appear in the last hour
with destinations as (
  select destinationAddress as destination, min(flowStartNanoseconds) as first_seen,
    count(*) as flows, count(distinct sensor) as sensors
  from flows
  group by 1
), newest as (select max(flowStartNanoseconds) as newest_ns from flows)
select destination, first_seen, flows, sensors
from destinations cross join newest
where first_seen > newest_ns - 3600000000000
order by first_seen, destination;

-- slow-handshakes: TCP services with the longest handshakes, in milliseconds
select destinationAddress as destination, destinationTransportPort as port, count(*) as handshakes,
  round(avg(handshakeNanoseconds) / 1e6, 3) as mean_ms,
  round(max(handshakeNanoseconds) / 1e6, 3) as slowest_ms
from flows
where handshakeNanoseconds is not null and tcpControlBits % 4 >= 2 -- has SYN: the first row of a flow
group by 1, 2
order by slowest_ms desc, destination, port
limit 20;

-- retransmissions: paths on which TCP sends the most segments again
select sourceAddress as source, destinationAddress as destination,
  sum(packetDeltaCount + reversePacketDeltaCount) as packets,
  sum(retransmitted) as sent_again, sum(reverseRetransmitted) as received_again,
  round(100 * sum(retransmitted + reverseRetransmitted)
    / sum(packetDeltaCount + reversePacketDeltaCount), 2) as percent
from flows
where protocolIdentifier = 6
group by 1, 2
having sum(retransmitted + reverseRetransmitted) > 0
order by percent desc, source, destination
limit 20;

-- port-scans: sources that try at least 20 ports of a destination
select sourceAddress as source, destinationAddress as destination, protocolIdentifier as protocol,
  count(distinct destinationTransportPort) as ports, count(distinct sensor) as sensors
from flows
where destinationTransportPort is not null
group by 1, 2, 3
having count(distinct destinationTransportPort) >= 20
order by ports desc, source, destination, protocol
limit 20;

-- host-scans: sources that try a port of at least 20 destinations, most of which send nothing back
select sourceAddress as source, protocolIdentifier as protocol, destinationTransportPort as port,
  count(distinct destinationAddress) as destinations, count(distinct sensor) as sensors,
  sum(case when reversePacketDeltaCount = 0 then 1 else 0 end) as unanswered, count(*) as flows
from flows
group by 1, 2, 3
having count(distinct destinationAddress) >= 20
  and 2 * sum(case when reversePacketDeltaCount = 0 then 1 else 0 end) > count(*)
order by destinations desc, source, protocol, port nulls last
limit 20;

-- beacons: TCP connections that repeat at regular intervals: at least 10, which deviate by less than 10 percent
with following as (
  select sourceAddress as source, destinationAddress as destination, destinationTransportPort as port,
    flowStartNanoseconds - lag(flowStartNanoseconds) over (
      partition by sourceAddress, destinationAddress, destinationTransportPort
      order by flowStartNanoseconds) as gap
  from flows
  where tcpControlBits % 4 >= 2 -- has SYN: the first row of a flow
)
select source, destination, port, count(*) + 1 as connections,
  round(avg(gap) / 1e9, 3) as interval_seconds,
  round(100 * stddev_pop(gap) / avg(gap), 2) as deviation_percent
from following
where gap is not null
group by 1, 2, 3
having count(*) >= 9 and avg(gap) > 0 and stddev_pop(gap) < 0.1 * avg(gap)
order by deviation_percent, source, destination, port
limit 20;

-- dns-failures: names for which servers report a failure; 3 is NXDOMAIN
select query, query_type, response_code, count(*) as responses,
  count(distinct destination_address) as clients, count(distinct sensor) as sensors
from dns
where message = 'response' and response_code <> 0
group by 1, 2, 3
order by responses desc, query nulls last, query_type nulls last, response_code
limit 20;

-- losses: packets of each sensor, and those that its tables lack
select sensor, sum(received) as received, sum(delivered) as delivered, sum(filtered) as filtered,
  sum(lost_nic_missed + lost_ring_full + lost_fill_empty + lost_sink + lost_unread + lost_other) as lost
from ledger
group by 1
order by sensor;
