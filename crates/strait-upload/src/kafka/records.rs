//! Records: a record has a flow, or several of one partition, and records of a partition are sent
//! as a batch. The key of a flow selects its partition.
//!
//! The format of a batch is version 2 of the message format
//! (<https://kafka.apache.org/documentation/#recordbatch>).

use super::wire::put_varint;

/// Version of the message format.
const MAGIC: u8 = 2;
/// Length of a key that a record does not have.
const NULL: i64 = -1;
/// Name of the header of a record with its identifier.
const ID: &[u8] = b"id";

/// Record before it is encoded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    /// None if the record has several flows.
    pub(super) key: Option<&'a str>,
    pub(super) value: &'a [u8],
    pub(super) id: &'a str,
}

/// Place of a batch in the sequence of its producer, by which a broker knows a batch that is sent
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) producer: i64,
    pub(super) epoch: i16,
    /// Number of the first record, within the partition.
    pub(super) sequence: i32,
}

/// Returns the partition of a key among `count`, as the clients of Apache Kafka choose it.
pub(super) fn partition(key: &str, count: usize) -> usize {
    (murmur2(key.as_bytes()) & 0x7fff_ffff) as usize % count.max(1)
}

/// Hash of Kafka's clients: MurmurHash2 with their seed.
fn murmur2(bytes: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    let mut hash = SEED ^ bytes.len() as u32;
    let words = bytes.chunks_exact(4);
    let rest = words.remainder();
    for word in words {
        let word = word.iter().rev().fold(0, |word, byte| (word << 8) | u32::from(*byte)).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ (word ^ (word >> 24)).wrapping_mul(M);
    }
    if !rest.is_empty() {
        hash ^= rest.iter().rev().fold(0, |word, byte| (word << 8) | u32::from(*byte));
        hash = hash.wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^ (hash >> 15)
}

/// Encodes a batch.
pub(super) fn encode<'a>(
    records: impl ExactSizeIterator<Item = Record<'a>>,
    origin: Origin,
    time_ms: i64,
) -> Vec<u8> {
    let count = records.len() as i32;
    let mut checked = Vec::new();
    // Attributes: no compression, time of the producer.
    checked.extend(0_i16.to_be_bytes());
    checked.extend((count - 1).to_be_bytes());
    checked.extend(time_ms.to_be_bytes());
    checked.extend(time_ms.to_be_bytes());
    checked.extend(origin.producer.to_be_bytes());
    checked.extend(origin.epoch.to_be_bytes());
    checked.extend(origin.sequence.to_be_bytes());
    checked.extend(count.to_be_bytes());
    let mut body = Vec::new();
    for (at, record) in (0..).zip(records) {
        body.clear();
        // Attributes, and the difference of the time from the first one's.
        body.extend([0, 0]);
        put_varint(&mut body, at);
        match record.key {
            Some(key) => put(&mut body, key.as_bytes()),
            None => put_varint(&mut body, NULL),
        }
        put(&mut body, record.value);
        put_varint(&mut body, 1);
        put(&mut body, ID);
        put(&mut body, record.id.as_bytes());
        put(&mut checked, &body);
    }
    // The lengths after the first two numbers: epoch of the leader, version, checksum.
    let length = (4 + 1 + 4 + checked.len()) as i32;
    let mut batch = Vec::with_capacity(8 + 4 + 4 + 1 + 4 + checked.len());
    batch.extend(0_i64.to_be_bytes());
    batch.extend(length.to_be_bytes());
    batch.extend((-1_i32).to_be_bytes());
    batch.push(MAGIC);
    batch.extend(crc32c(&checked).to_be_bytes());
    batch.extend(checked);
    batch
}

/// Appends bytes after their length.
fn put(to: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(to, bytes.len() as i64);
    to.extend(bytes);
}

/// CRC-32C (Castagnoli).
fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = table();
    !bytes.iter().fold(!0, |crc: u32, byte| (crc >> 8) ^ TABLE[usize::from(crc as u8 ^ byte)])
}

const fn table() -> [u32; 256] {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut table = [0; 256];
    let mut at = 0;
    while at < table.len() {
        let (mut crc, mut bit) = (at as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        table[at] = crc;
        at += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes of the tests of Kafka's clients.
    #[test]
    fn hash_is_that_of_the_clients_of_kafka() {
        for (text, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(text.as_bytes()).cast_signed(), hash, "{text}");
        }
        assert_eq!((partition("abc", 1), partition("abc", 0), partition("abc", 10)), (0, 0, 7));
    }

    #[test]
    fn checksum_is_that_of_the_catalogue() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn batch_has_its_length_and_its_origin() {
        let record = Record { key: Some("k"), value: b"line", id: "c-7" };
        let origin = Origin { producer: 5, epoch: 6, sequence: 7 };
        let batch = encode([record; 2].into_iter(), origin, 1000);
        let number = |at: usize| i32::from_be_bytes(batch[at..at + 4].try_into().unwrap());
        assert_eq!(number(8) as usize, batch.len() - 12);
        assert_eq!((batch[16], number(17) as u32), (2, crc32c(&batch[21..])));
        assert_eq!((number(23), batch[50], batch[52]), (1, 5, 6), "last record, producer, epoch");
        assert_eq!((number(53), number(57)), (7, 2), "sequence, number of records");
        assert_eq!(&batch[61..80], b"\x24\0\0\0\x02k\x08line\x02\x04id\x06c-7");
        let batch = encode([Record { key: None, ..record }].into_iter(), origin, 1000);
        assert_eq!(&batch[61..79], b"\x22\0\0\0\x01\x08line\x02\x04id\x06c-7");
    }
}
