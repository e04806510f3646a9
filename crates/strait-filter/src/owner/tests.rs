//! Layout of owners. The kernel runs the programs in the tests of the capture crate.

use super::{Maps, Offsets, Owner, Use, files_program, use_program};

#[test]
fn owner_has_the_documented_layout() {
    let mut bytes = [0; Owner::BYTES];
    bytes[0..4].copy_from_slice(&4_000_000_u32.to_ne_bytes());
    bytes[8..12].copy_from_slice(&1000_u32.to_ne_bytes());
    bytes[16..24].copy_from_slice(&77_u64.to_ne_bytes());
    bytes[24..28].copy_from_slice(b"curl");
    let mut command = [0; 16];
    command[..4].copy_from_slice(b"curl");
    assert_eq!(Owner::parse(&bytes), Owner { pid: 4_000_000, uid: 1000, cgroup: 77, command });
}

#[test]
fn offset_beyond_the_reach_of_an_instruction_is_refused() {
    let mut found = [8; Offsets::MEMBERS.len()];
    assert_eq!(Offsets::new(found).unwrap().sock_family, 8);
    found[3] = 1 << 15;
    assert_eq!(Offsets::new(found), None);
}

#[test]
fn programs_assemble() {
    let maps = Maps { storage_fd: 3, owners_fd: 4, state_fd: 5 };
    let offsets = Offsets::new([8; Offsets::MEMBERS.len()]).unwrap();
    for of in [Use::State, Use::Transfer, Use::Create, Use::Address] {
        assert!(use_program(of, &maps, &offsets).unwrap().len() > 60, "{of:?}");
    }
    assert!(files_program(&maps, &offsets).unwrap().len() > 60);
}
