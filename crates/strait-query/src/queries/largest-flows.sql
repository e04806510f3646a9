-- Flows with the most bytes
select flowStartNanoseconds as start, sourceAddress as source, sourceTransportPort as source_port,
  destinationAddress as destination, destinationTransportPort as destination_port,
  protocolIdentifier as protocol, octetDeltaCount as bytes_sent,
  reverseOctetDeltaCount as bytes_received, communityId
from flows
order by octetDeltaCount + reverseOctetDeltaCount desc, start, communityId
limit 20
