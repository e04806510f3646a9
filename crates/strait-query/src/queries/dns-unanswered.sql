-- Queries of DNS without a response
select destination_address as server, query, query_type, count(*) as queries,
  count(distinct source_address) as clients, max(time) as last_seen
from dns as asked
where message = 'query' and destination_port = 53 and not exists (
  select 1 from dns as answered
  where answered.message = 'response' and answered.community_id = asked.community_id
    and answered.transaction_id = asked.transaction_id)
group by 1, 2, 3
order by queries desc, server, query, query_type
limit 20
