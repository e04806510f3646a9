//! Tests of the layout of the kernel's structures and, if the kernel has kTLS, of a connection.

use std::io::{self, Read as _, Write as _};
use std::mem::{align_of, offset_of};

use super::*;
use crate::Kind;

#[test]
fn keys_are_laid_out_as_the_kernel_reads_them() {
    // linux/tls.h
    type Aes128 = libc::tls12_crypto_info_aes_gcm_128;
    type Aes256 = libc::tls12_crypto_info_aes_gcm_256;
    assert_eq!((size_of::<Aes128>(), size_of::<Aes256>()), (40, 56));
    assert_eq!((offset_of!(Aes128, iv), offset_of!(Aes128, key)), (4, 12));
    assert_eq!((offset_of!(Aes128, salt), offset_of!(Aes128, rec_seq)), (28, 32));
    assert_eq!((offset_of!(Aes256, iv), offset_of!(Aes256, key)), (4, 12));
    assert_eq!((offset_of!(Aes256, salt), offset_of!(Aes256, rec_seq)), (44, 48));
    assert_eq!((libc::TLS_1_3_VERSION, libc::SOL_TLS, libc::TLS_TX, libc::TLS_RX), (0x0304, 282, 1, 2));
    assert_eq!((libc::TLS_CIPHER_AES_GCM_128, libc::TLS_CIPHER_AES_GCM_256), (51, 52));
}

#[test]
fn missing_module_is_loaded_only_by_a_kernel_with_modules() {
    let module = ["tls", "CONFIG_TLS"];
    assert_eq!(load(module, Path::new("/")), "modprobe tls");
    let remedy = load(module, Path::new("/lib/modules/no-such-release"));
    assert!(remedy.starts_with("boot a kernel with CONFIG_TLS; in a container, "), "{remedy}");
    assert!(remedy.contains("/lib/modules/no-such-release does not exist"), "{remedy}");
}

#[test]
fn the_control_message_of_a_type_fits_its_buffer() {
    assert!(size_of::<Control>() > size_of::<libc::cmsghdr>());
    assert_eq!(align_of::<Control>(), align_of::<libc::cmsghdr>());
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (stream, listener.accept().unwrap().0)
}

#[test]
fn data_is_not_received_as_a_record() {
    let (mut stream, peer) = pair();
    assert_eq!(receive_record(&peer).unwrap_err().errno(), Some(libc::EAGAIN));
    stream.write_all(b"data").unwrap();
    peer.peek(&mut [0]).unwrap();
    assert_eq!(receive_record(&peer).unwrap_err().errno(), Some(libc::EIO));
}

/// Skips without kTLS, after checking that it is refused.
#[test]
fn data_and_close_notify_arrive_decrypted() {
    match probe() {
        Ok(()) => {}
        Err(error) => {
            assert_eq!(error.kind(), Kind::Refused, "{error}");
            return;
        }
    }
    for key in [Key::Aes128(&[7; 16]), Key::Aes256(&[9; 32])] {
        let (mut stream, mut peer) = pair();
        let keys = Keys { key, iv: &[3; 12], sequence: 5 };
        attach(&stream).unwrap();
        attach(&peer).unwrap();
        set_keys(&stream, Direction::Transmit, keys).unwrap();
        set_keys(&peer, Direction::Receive, keys).unwrap();
        stream.write_all(&vec![1; 50_000]).unwrap();
        send_end(&stream).unwrap();
        let mut data = vec![0; 50_000];
        peer.read_exact(&mut data).unwrap();
        assert!(data.iter().all(|byte| *byte == 1));
        let error: io::Error = peer.read(&mut data).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        assert_eq!(receive_record(&peer).unwrap(), Record::End);
    }
}
