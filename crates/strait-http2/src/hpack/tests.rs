//! Blocks of RFC 7541, and malformed ones.

use proptest::prelude::*;

use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn text(list: &FieldList) -> Vec<String> {
    let show = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    list.iter().map(|(name, value)| format!("{}: {}", show(name), show(value))).collect()
}

/// Blocks of one connection, the expected fields, and the size of the table after each.
fn check(table_max: usize, blocks: &[(&str, &[&str], usize)]) {
    let (mut decoder, mut list) = (Decoder::new(table_max), FieldList::new(4096, 100));
    for (block, expected, size) in blocks {
        decoder.decode(&hex(block), &mut list).unwrap();
        assert_eq!(text(&list), *expected);
        assert_eq!(decoder.table_size(), *size);
    }
}

const FIRST: &[&str] = &[":method: GET", ":scheme: http", ":path: /", ":authority: www.example.com"];
const SECOND: &[&str] =
    &[":method: GET", ":scheme: http", ":path: /", ":authority: www.example.com", "cache-control: no-cache"];
const THIRD: &[&str] = &[
    ":method: GET",
    ":scheme: https",
    ":path: /index.html",
    ":authority: www.example.com",
    "custom-key: custom-value",
];

#[test]
fn requests_of_rfc_7541_c3_and_c4_are_decoded() {
    check(
        4096,
        &[
            ("828684410f7777772e6578616d706c652e636f6d", FIRST, 57),
            ("828684be58086e6f2d6361636865", SECOND, 110),
            ("828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565", THIRD, 164),
        ],
    );
    check(
        4096,
        &[
            ("828684418cf1e3c2e5f23a6ba0ab90f4ff", FIRST, 57),
            ("828684be5886a8eb10649cbf", SECOND, 110),
            ("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf", THIRD, 164),
        ],
    );
}

#[test]
fn responses_of_rfc_7541_c6_evict_entries() {
    let date = "date: Mon, 21 Oct 2013 20:13:21 GMT";
    let location = "location: https://www.example.com";
    check(
        256,
        &[
            (
                "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3",
                &[":status: 302", "cache-control: private", date, location],
                222,
            ),
            ("4883640effc1c0bf", &[":status: 307", "cache-control: private", date, location], 222),
            (
                "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
                &[
                    ":status: 200",
                    "cache-control: private",
                    "date: Mon, 21 Oct 2013 20:13:22 GMT",
                    location,
                    "content-encoding: gzip",
                    "set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
                ],
                215,
            ),
        ],
    );
}

#[test]
fn malformed_blocks_are_refused() {
    for (block, expected) in [
        ("80", HpackError::Index),
        ("be", HpackError::Index),
        ("ffffffffffff", HpackError::Integer),
        ("4005", HpackError::Truncated),
        ("40", HpackError::Truncated),
        // Size updates: above the setting, and after a field.
        ("3fe21f", HpackError::TableSize),
        ("8220", HpackError::TableSize),
        // Huffman: the end of a string in it, padding of eight bits, and padding with a zero.
        ("0084ffffffff00", HpackError::Huffman),
        ("0082f1ff00", HpackError::Huffman),
        ("0081f000", HpackError::Huffman),
    ] {
        let (mut decoder, mut list) = (Decoder::new(4096), FieldList::new(4096, 100));
        assert_eq!(decoder.decode(&hex(block), &mut list), Err(expected), "{block}");
    }
}

#[test]
fn list_beyond_its_limits_is_marked_and_a_bomb_is_refused() {
    let (mut decoder, mut list) = (Decoder::new(4096), FieldList::new(1000, 3));
    decoder.decode(&hex("82868484"), &mut list).unwrap();
    assert!(list.is_over() && list.iter().count() == 3);
    // An entry of 500 bytes, then references to it.
    let mut block = hex("4001617fee02");
    block.resize(block.len() + 493, b'x');
    decoder.decode(&block, &mut list).unwrap();
    assert!(!list.is_over());
    decoder.decode(&hex("bebebe"), &mut list).unwrap();
    assert!(list.is_over() && list.iter().count() == 1);
    assert_eq!(decoder.decode(&[0xbe; 11], &mut list), Err(HpackError::Bomb));
}

#[test]
fn static_names_and_values_are_encoded_as_indexes() {
    let mut block = Vec::new();
    encode(b":status", b"200", &mut block);
    assert_eq!(block, [0x88]);
    encode(b":status", b"203", &mut block);
    encode(b"age", b"1", &mut block);
    assert_eq!(block[1] & 0x0f, 8);
    let mut list = FieldList::new(4096, 100);
    Decoder::new(0).decode(&block, &mut list).unwrap();
    assert_eq!(text(&list), [":status: 200", ":status: 203", "age: 1"]);
}

proptest! {
    #[test]
    fn encoded_fields_are_decoded(fields in prop::collection::vec(("[a-z:-]{1,20}", prop::collection::vec(any::<u8>(), 0..200)), 0..20)) {
        let mut block = Vec::new();
        forget_table(&mut block);
        for (name, value) in &fields {
            encode(name.as_bytes(), value, &mut block);
        }
        let mut list = FieldList::new(1 << 20, 100);
        Decoder::new(4096).decode(&block, &mut list).unwrap();
        let decoded: Vec<_> = list.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        let expected: Vec<_> = fields.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.clone())).collect();
        prop_assert_eq!(decoded, expected);
    }

    #[test]
    fn random_blocks_do_not_panic(block in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Decoder::new(4096).decode(&block, &mut FieldList::new(4096, 100));
    }
}

#[test]
fn names_are_encoded_in_lower_case() {
    let long = format!("X-{}", "Ab".repeat(60));
    for name in ["Content-Length", "cache-status", "X_Upper", "", &long] {
        let (mut block, mut list) = (Vec::new(), FieldList::new(4096, 100));
        encode_lower(name.as_bytes(), b"Value", &mut block);
        Decoder::new(4096).decode(&block, &mut list).unwrap();
        assert_eq!(text(&list), [format!("{}: Value", name.to_ascii_lowercase())]);
    }
}

#[test]
fn written_values_have_any_length() {
    for len in [0, 1, 126, 127, 128, 300] {
        let (mut block, mut list) = (Vec::new(), FieldList::new(4096, 100));
        let value = "v".repeat(len);
        for _ in 0..2 {
            // Index of the name `age`, which takes two bytes.
            block.extend([0x0f, 21 - 15]);
            encode_value_by(|out| out.extend_from_slice(value.as_bytes()), &mut block);
        }
        Decoder::new(4096).decode(&block, &mut list).unwrap();
        assert_eq!(text(&list), [format!("age: {value}"), format!("age: {value}")]);
    }
}

#[test]
fn parts_of_a_list_are_text_if_they_are_utf_8() {
    let mut list = FieldList::new(4096, 100);
    for (values, expected) in [
        ([&b"a"[..], b"b"], [Some("a"), Some("b")]),
        ([b"a", b"\xff"], [Some("a"), None]),
        // The bytes of both are one character.
        ([b"\xc3", b"\xa9"], [None, None]),
        ([b"", b""], [Some(""), Some("")]),
    ] {
        let mut block = Vec::new();
        for value in values {
            encode(b"", value, &mut block);
        }
        Decoder::new(4096).decode(&block, &mut list).unwrap();
        let texts: Vec<_> = list.entries().map(Entry::value_text).collect();
        assert_eq!(texts, expected);
        assert!(list.iter().map(|(_, value)| value).eq(values));
    }
}
