-- Names in DNS for which servers report a failure
select query, query_type, case response_code when 1 then 'FORMERR' when 2 then 'SERVFAIL'
    when 3 then 'NXDOMAIN' when 4 then 'NOTIMP' when 5 then 'REFUSED'
    else cast(response_code as varchar) end as failure,
  count(*) as responses, count(distinct destination_address) as clients, max(time) as last_seen
from dns
where message = 'response' and response_code <> 0
group by 1, 2, 3
order by responses desc, query, query_type
limit 20
