-- Destinations that first appear in the last hour of the flows
with destinations as (
  select destinationAddress as destination, min(flowStartNanoseconds) as first_seen,
    count(*) as flows, count(distinct sourceAddress) as sources,
    sum(octetDeltaCount + reverseOctetDeltaCount) as bytes
  from flows
  group by 1
), newest as (select max(flowStartNanoseconds) as time from flows)
select destination, first_seen, flows, sources, bytes
from destinations cross join newest
where first_seen > newest.time - interval '1 hour'
order by first_seen, destination
