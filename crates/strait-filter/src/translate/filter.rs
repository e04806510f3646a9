//! A filter to translate, and the parts of the frame that it needs.

use super::layout::{View, size_of};
use super::options::Options;
use crate::cbpf::{Program, opcode as cop};
use crate::ebpf::{Label, Size};

/// A filter to embed in an XDP program.
///
/// [`Filter::emit`] emits it at the current place of the caller's program.
/// [`Filter::emit_functions`] emits the functions that it calls, after the end of that program.
pub(crate) struct Filter<'a> {
    pub(super) program: &'a Program,
    pub(super) options: &'a Options,
    pub(super) needs: Needs,
    /// Loader functions that were called.
    pub(super) loaders: Vec<(View, Size, Label)>,
}

impl<'a> Filter<'a> {
    pub(crate) fn new(program: &'a Program, options: &'a Options) -> Self {
        Self { program, options, needs: Needs::of(program), loaders: Vec::new() }
    }
}

/// Parts of the frame that the program requires, and that the entry code therefore saves.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Needs {
    /// The VLAN tag.
    pub(super) vlan: bool,
    /// The header's addresses or type as ancillary values (`SKF_AD_PKTTYPE`, `SKF_AD_PROTOCOL`).
    pub(super) header_facts: bool,
    /// Bytes on both sides of offset 12 in one load.
    pub(super) header_bytes: bool,
}

impl Needs {
    fn of(program: &Program) -> Self {
        let mut needs = Self::default();
        for instruction in program.instructions() {
            let k = instruction.k;
            match instruction.code & (cop::CLASS | cop::MODE) {
                LD_ABS if k >= cop::SKF_AD_OFF as u32 => match k.wrapping_sub(cop::SKF_AD_OFF as u32) {
                    cop::SKF_AD_PROTOCOL | cop::SKF_AD_PKTTYPE => needs.header_facts = true,
                    cop::SKF_AD_VLAN_TAG | cop::SKF_AD_VLAN_TAG_PRESENT | cop::SKF_AD_VLAN_TPID => {
                        needs.vlan = true;
                    }
                    _ => {}
                },
                LD_ABS => {
                    let bytes = size_of(instruction.code).bytes() as usize;
                    let at = crate::interpret::resolve(k as i32);
                    needs.header_bytes |= at.is_some_and(|at| View::Tagged.straddles(at, bytes));
                }
                LD_IND => needs.header_bytes = true,
                _ => {}
            }
        }
        needs
    }
}

const LD_ABS: u16 = cop::LD | cop::ABS;
const LD_IND: u16 = cop::LD | cop::IND;
