-- Connections that repeat at regular intervals: at least 10, which deviate by less than 10 percent
with rows as (
  select *, lag(flowEndReason) over (
    partition by communityId order by flowStartNanoseconds) as reason_before
  from flows
), gaps as (
  select sourceAddress as source, destinationAddress as destination,
    destinationTransportPort as port,
    cast(flowStartNanoseconds as bigint) - lag(cast(flowStartNanoseconds as bigint)) over (
      partition by sourceAddress, destinationAddress, destinationTransportPort
      order by flowStartNanoseconds) as gap
  from rows
  where reason_before is null or reason_before <> 2 -- the row of a flow that goes on
)
select source, destination, port, count(*) + 1 as connections,
  round(avg(gap) / 1e9, 3) as interval_seconds,
  round(100 * stddev_pop(gap) / avg(gap), 2) as deviation_percent
from gaps
where gap is not null
group by 1, 2, 3
having count(*) >= 9 and avg(gap) > 0 and stddev_pop(gap) < 0.1 * avg(gap)
order by deviation_percent, source, destination, port
limit 20
