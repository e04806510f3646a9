//! Requests of a producer, in versions that Kafka 0.11 and newer have. Those of a login need Kafka
//! 1.0 (KIP-152).

use super::wire::{Malformed, Reader, put_bytes, put_text};

/// Number and version of a kind of request, and the maximum length of its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Api {
    pub(super) key: i16,
    pub(super) version: i16,
    pub(super) answer_len_max: usize,
}

impl Api {
    const fn new(key: i16, version: i16) -> Self {
        Self { key, version, answer_len_max: ANSWER_LEN_MAX }
    }
}

/// Maximum length of an answer: more than a result for each flow of a batch.
const ANSWER_LEN_MAX: usize = 128 << 10;
/// Maximum length of the answer with all brokers, and all partitions of a topic.
const METADATA_LEN_MAX: usize = 8 << 20;

pub(super) const PRODUCE: Api = Api::new(0, 3);
pub(super) const METADATA: Api = Api { answer_len_max: METADATA_LEN_MAX, ..Api::new(3, 4) };
pub(super) const SASL_HANDSHAKE: Api = Api::new(17, 1);
pub(super) const INIT_PRODUCER_ID: Api = Api::new(22, 0);
pub(super) const SASL_AUTHENTICATE: Api = Api::new(36, 0);

/// Acknowledgment of all replicas that are in sync.
const ALL_IN_SYNC: i16 = -1;
/// Text that is null, and a broker that is unknown.
const NULL: i16 = -1;
const NO_BROKER: i32 = -1;

/// Error of a broker (<https://kafka.apache.org/protocol.html#protocol_error_codes>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Code(pub(super) i16);

impl Code {
    pub(super) const NONE: Self = Self(0);
    const UNKNOWN_TOPIC: Self = Self(3);
    pub(super) const LEADER_NOT_AVAILABLE: Self = Self(5);
    const CORRUPT_MESSAGE: Self = Self(2);
    const MESSAGE_TOO_LARGE: Self = Self(10);
    const RECORD_LIST_TOO_LARGE: Self = Self(18);
    const NOT_ENOUGH_REPLICAS: Self = Self(19);
    const TOPIC_AUTHORIZATION_FAILED: Self = Self(29);
    const CLUSTER_AUTHORIZATION_FAILED: Self = Self(31);
    const INVALID_TIMESTAMP: Self = Self(32);
    pub(super) const UNSUPPORTED_MECHANISM: Self = Self(33);
    pub(super) const ILLEGAL_SASL_STATE: Self = Self(34);
    const POLICY_VIOLATION: Self = Self(44);
    const OUT_OF_ORDER_SEQUENCE: Self = Self(45);
    const DUPLICATE_SEQUENCE: Self = Self(46);
    const INVALID_PRODUCER_EPOCH: Self = Self(47);
    const UNKNOWN_PRODUCER: Self = Self(59);
    const INVALID_RECORD: Self = Self(87);

    /// Returns true if the broker has the records.
    pub(super) fn is_stored(self) -> bool {
        matches!(self, Self::NONE | Self::DUPLICATE_SEQUENCE)
    }

    /// Returns true if the broker may have the records. It finds the errors that are named here
    /// before it appends them. It also answers others, such as that it is not the leader, if the
    /// leader changes while the replicas acknowledge.
    pub(super) fn is_unknown(self) -> bool {
        let is_before_append = self.is_too_large()
            || self.needs_producer()
            || matches!(
                self,
                Self::CORRUPT_MESSAGE
                    | Self::NOT_ENOUGH_REPLICAS
                    | Self::TOPIC_AUTHORIZATION_FAILED
                    | Self::CLUSTER_AUTHORIZATION_FAILED
                    | Self::INVALID_TIMESTAMP
                    | Self::POLICY_VIOLATION
                    | Self::INVALID_RECORD
            );
        !is_before_append
    }

    /// Returns true if the batch is larger than the topic's max.message.bytes.
    pub(super) fn is_too_large(self) -> bool {
        matches!(self, Self::MESSAGE_TOO_LARGE | Self::RECORD_LIST_TOO_LARGE)
    }

    /// Returns true if the broker does not know the producer's sequence.
    pub(super) fn needs_producer(self) -> bool {
        matches!(self, Self::OUT_OF_ORDER_SEQUENCE | Self::INVALID_PRODUCER_EPOCH | Self::UNKNOWN_PRODUCER)
    }

    /// Returns the cause, for a user.
    pub(super) fn text(self, topic: &str) -> String {
        let known = match self.0 {
            3 => return format!("the cluster has no topic {topic}: create it"),
            29 => return format!("this user may not write to the topic {topic}: permit it"),
            31 => "this user may not write idempotently: permit IdempotentWrite on the cluster",
            5 => "a partition has no leader",
            6 => "the leader of a partition has changed",
            7 => "the replicas have not acknowledged in time",
            19 | 20 => "too few replicas are in sync",
            45 | 47 | 59 => "the broker has forgotten the sequence of this producer",
            14..=16 => "the broker is starting",
            10 | 18 => "a flow is longer than max.message.bytes of the topic",
            44 => "a policy of the topic forbids these records",
            56 => "the disk of the broker has failed",
            58 => "the user or the password is wrong",
            87 => "the topic takes no records of this kind, as it is compacted or its records are checked",
            other => return format!("the broker has refused the records with error {other}"),
        };
        known.to_owned()
    }
}

/// Cluster, as one of its brokers knows it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Metadata {
    /// Identifier of the cluster; empty if it has none.
    pub(super) cluster: String,
    /// Number and address of each broker.
    pub(super) brokers: Vec<(i32, String)>,
    /// Leader of each partition of the topic.
    pub(super) leaders: Vec<Option<i32>>,
}

pub(super) fn metadata(topic: &str) -> Vec<u8> {
    let mut to = 1_i32.to_be_bytes().to_vec();
    put_text(&mut to, topic);
    // The broker creates no topic.
    to.push(0);
    to
}

/// Reads the answer to a request about one topic.
pub(super) fn read_metadata(bytes: &[u8], topic: &str) -> Result<Metadata, String> {
    let mut from = Reader::new(bytes);
    let _throttle = from.i32()?;
    let brokers = from.all(|from| {
        let (id, host, port) = (from.i32()?, from.text()?, from.i32()?);
        let _rack = from.text()?;
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        Ok((id, format!("{host}:{port}")))
    })?;
    let (cluster, _controller) = (from.text()?.to_owned(), from.i32()?);
    let topics = from.all(|from| {
        let (code, name) = (Code(from.i16()?), from.text()?);
        from.skip(1)?;
        let partitions = from.all(|from| {
            let _code = from.i16()?;
            let (index, leader) = (from.i32()?, from.i32()?);
            let (_replicas, _in_sync) = (from.all(Reader::i32)?, from.all(Reader::i32)?);
            Ok((index, leader))
        })?;
        Ok((code, name, partitions))
    })?;
    let found = topics.into_iter().find(|(_, name, _)| *name == topic);
    let (code, _, partitions) = found.ok_or_else(|| Code::UNKNOWN_TOPIC.text(topic))?;
    if code != Code::NONE {
        return Err(code.text(topic));
    }
    let mut leaders = vec![None; partitions.len()];
    for (index, leader) in partitions {
        let entry = usize::try_from(index).ok().and_then(|index| leaders.get_mut(index));
        *entry.ok_or(Malformed)? = Some(leader).filter(|leader| *leader != NO_BROKER);
    }
    Ok(Metadata { cluster, brokers, leaders })
}

/// Request for the identifier of a producer without transactions.
pub(super) fn init_producer_id() -> Vec<u8> {
    let mut to = NULL.to_be_bytes().to_vec();
    to.extend(i32::MAX.to_be_bytes());
    to
}

/// Reads identifier and epoch of a producer.
pub(super) fn read_producer_id(bytes: &[u8], topic: &str) -> Result<(i64, i16), String> {
    let mut from = Reader::new(bytes);
    let (_throttle, code) = (from.i32()?, Code(from.i16()?));
    let (id, epoch) = (from.i64()?, from.i16()?);
    match code {
        // Without an identifier, a broker would store a batch as often as it is sent.
        Code::NONE if id < 0 || epoch < 0 => Err(Malformed.into()),
        Code::NONE => Ok((id, epoch)),
        _ => Err(code.text(topic)),
    }
}

/// Request to store a batch in each of several partitions, which have one leader.
pub(super) fn produce(topic: &str, batches: &[(i32, Vec<u8>)], timeout_ms: i32) -> Vec<u8> {
    let length: usize = batches.iter().map(|(_, batch)| batch.len() + 8).sum();
    let mut to = Vec::with_capacity(length + topic.len() + 32);
    to.extend(NULL.to_be_bytes());
    to.extend(ALL_IN_SYNC.to_be_bytes());
    to.extend(timeout_ms.to_be_bytes());
    to.extend(1_i32.to_be_bytes());
    put_text(&mut to, topic);
    to.extend((batches.len() as i32).to_be_bytes());
    for (partition, batch) in batches {
        to.extend(partition.to_be_bytes());
        put_bytes(&mut to, batch);
    }
    to
}

/// Answer to a request to store batches.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Produced {
    /// Partition and result of each batch.
    pub(super) results: Vec<(i32, Code)>,
    /// Time for which the next request shall wait.
    pub(super) throttle_ms: u32,
}

pub(super) fn read_produced(bytes: &[u8]) -> Result<Produced, Malformed> {
    let mut from = Reader::new(bytes);
    let topics = from.all(|from| {
        let _topic = from.text()?;
        from.all(|from| {
            let (partition, code) = (from.i32()?, Code(from.i16()?));
            let (_offset, _time) = (from.i64()?, from.i64()?);
            Ok((partition, code))
        })
    })?;
    let throttle_ms = u32::try_from(from.i32()?).unwrap_or(0);
    Ok(Produced { results: topics.into_iter().flatten().collect(), throttle_ms })
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::num::u8;
    use proptest::prelude::proptest;

    use super::*;

    proptest! {
        #[test]
        fn answers_of_any_bytes_are_read_or_refused(bytes in vec(u8::ANY, 0..200), count in 0_u8..4) {
            // Small numbers, which are lengths, let the rest be read.
            let small: Vec<u8> = bytes.iter().map(|byte| byte % (count + 1)).collect();
            for bytes in [bytes, small] {
                let read = [
                    read_metadata(&bytes, "").is_ok(),
                    read_producer_id(&bytes, "").is_ok(),
                    read_produced(&bytes).is_ok(),
                ];
                assert!(bytes.len() >= 8 || read == [false; 3]);
            }
        }
    }

    #[test]
    fn metadata_has_brokers_and_leaders() {
        let mut bytes = vec![0; 4];
        bytes.extend(2_i32.to_be_bytes());
        for (id, host) in [(7_i32, "a.example"), (8, "::1")] {
            bytes.extend(id.to_be_bytes());
            put_text(&mut bytes, host);
            bytes.extend(9092_i32.to_be_bytes());
            bytes.extend(NULL.to_be_bytes());
        }
        put_text(&mut bytes, "c");
        bytes.extend(7_i32.to_be_bytes());
        bytes.extend(1_i32.to_be_bytes());
        let topic = bytes.len();
        bytes.extend([0, 0]);
        put_text(&mut bytes, "flows");
        bytes.push(0);
        bytes.extend(2_i32.to_be_bytes());
        for (index, leader) in [(1_i32, 8_i32), (0, -1)] {
            bytes.extend([0, 0]);
            bytes.extend(index.to_be_bytes());
            bytes.extend(leader.to_be_bytes());
            bytes.extend([0; 8]);
        }
        let brokers = vec![(7, "a.example:9092".to_owned()), (8, "[::1]:9092".to_owned())];
        let expected = Metadata { cluster: "c".into(), brokers, leaders: vec![None, Some(8)] };
        assert_eq!(read_metadata(&bytes, "flows"), Ok(expected));
        for end in 0..bytes.len() {
            assert!(read_metadata(&bytes[..end], "flows").is_err(), "{end}");
        }
        assert!(read_metadata(&bytes, "other").unwrap_err().contains("no topic other: create it"));
        bytes[topic + 1] = 29;
        assert!(read_metadata(&bytes, "flows").unwrap_err().contains("may not write"));
    }

    #[test]
    fn producer_has_an_identifier() {
        let answer = |code: i16, id: i64| {
            let mut bytes = vec![0; 4];
            bytes.extend(code.to_be_bytes());
            bytes.extend(id.to_be_bytes());
            bytes.extend(2_i16.to_be_bytes());
            read_producer_id(&bytes, "flows")
        };
        assert_eq!(answer(0, 7), Ok((7, 2)));
        assert!(answer(0, -1).unwrap_err().contains("not in Kafka's protocol"));
        assert!(answer(31, -1).unwrap_err().contains("permit IdempotentWrite"));
    }

    #[test]
    fn results_have_partitions_and_codes() {
        let mut bytes = 1_i32.to_be_bytes().to_vec();
        put_text(&mut bytes, "flows");
        bytes.extend(1_i32.to_be_bytes());
        bytes.extend(3_i32.to_be_bytes());
        bytes.extend(10_i16.to_be_bytes());
        bytes.extend([0; 16]);
        bytes.extend(250_i32.to_be_bytes());
        let expected = Produced { results: vec![(3, Code::MESSAGE_TOO_LARGE)], throttle_ms: 250 };
        assert_eq!(read_produced(&bytes), Ok(expected));
        assert_eq!(read_produced(&bytes[..bytes.len() - 1]), Err(Malformed));
    }
}
