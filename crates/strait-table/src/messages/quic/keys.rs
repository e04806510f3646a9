//! Keys of Initial packets, which everyone can derive (RFC 9001 s5.2).

use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use ring::{aead, error::Unspecified};
use strait_packet::quic::{self, Initial, Version};

/// Keys of the Initial packets of one side.
pub(super) struct Keys {
    pub(super) payload: aead::LessSafeKey,
    pub(super) nonce: [u8; aead::NONCE_LEN],
    pub(super) header: aead::quic::HeaderProtectionKey,
}

/// Length of the bytes that a key derivation returns.
struct Bytes(usize);

impl KeyType for Bytes {
    fn len(&self) -> usize {
        self.0
    }
}

impl Keys {
    /// Returns the keys of client and server.
    pub(super) fn pair(version: Version, first_id: &[u8]) -> Result<[Self; 2], Unspecified> {
        let secret = Salt::new(HKDF_SHA256, salt(version)).extract(first_id);
        let of = |label: &[u8]| {
            let secret: Prk = secret.expand(&[&info(32, label)], HKDF_SHA256)?.into();
            Self::of(version, &secret)
        };
        Ok([of(b"client in")?, of(b"server in")?])
    }

    fn of(version: Version, secret: &Prk) -> Result<Self, Unspecified> {
        let [key, iv, hp]: [&[u8]; 3] = match version {
            Version::V1 => [b"quic key", b"quic iv", b"quic hp"],
            Version::V2 => [b"quicv2 key", b"quicv2 iv", b"quicv2 hp"],
        };
        let payload: aead::UnboundKey = secret.expand(&[&info(16, key)], &aead::AES_128_GCM)?.into();
        let header = secret.expand(&[&info(16, hp)], &aead::quic::AES_128)?.into();
        let mut nonce = [0; aead::NONCE_LEN];
        secret.expand(&[&info(nonce.len(), iv)], Bytes(nonce.len()))?.fill(&mut nonce)?;
        Ok(Self { payload: aead::LessSafeKey::new(payload), nonce, header })
    }

    /// Returns the decrypted payload of a packet, or `None` if it has other keys.
    pub(super) fn decrypt(&self, initial: &Initial<'_>) -> Option<Vec<u8>> {
        let sample_at = initial.number_offset + quic::SAMPLE_OFFSET;
        let sample = initial.bytes.get(sample_at..sample_at + quic::SAMPLE_LEN)?;
        let [first_mask, number_mask @ ..] = self.header.new_mask(sample).ok()?;
        let mut bytes = initial.bytes.to_vec();
        let first = bytes.first_mut()?;
        *first ^= first_mask & 0x0f;
        let number_len = usize::from(*first & 3) + 1;
        let payload_at = initial.number_offset + number_len;
        let number = bytes.get_mut(initial.number_offset..payload_at)?;
        // The number is the whole one: these packets are the first ones of a connection.
        let mut nonce = self.nonce;
        let places = nonce.iter_mut().skip(aead::NONCE_LEN - number_len);
        for ((byte, mask), place) in number.iter_mut().zip(number_mask).zip(places) {
            *byte ^= mask;
            *place ^= *byte;
        }
        let (head, payload) = bytes.split_at_mut(payload_at);
        let nonce = aead::Nonce::assume_unique_for_key(nonce);
        let payload = self.payload.open_in_place(nonce, aead::Aad::from(&*head), payload).ok()?;
        Some(payload.to_vec())
    }
}

/// Salts of RFC 9001 s5.2 and RFC 9369 s3.3.1.
fn salt(version: Version) -> &'static [u8; 20] {
    match version {
        Version::V1 => b"\x38\x76\x2c\xf7\xf5\x59\x34\xb3\x4d\x17\x9a\xe6\xa4\xc8\x0c\xad\xcc\xbb\x7f\x0a",
        Version::V2 => b"\x0d\xed\xe3\xde\xf7\x00\xa6\xdb\x81\x93\x81\xbe\x6e\x26\x9d\xcb\xf9\xbd\x2e\xd9",
    }
}

/// Returns the label of a key of `len` bytes (RFC 8446 s7.1).
fn info(len: usize, label: &[u8]) -> Vec<u8> {
    const PREFIX: &[u8] = b"tls13 ";
    [&[0, len as u8, (PREFIX.len() + label.len()) as u8], PREFIX, label, &[0]].concat()
}
