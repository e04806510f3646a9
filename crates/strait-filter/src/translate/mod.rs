//! Translation of classic BPF to eBPF for XDP and tcx, with the results of a packet socket's
//! filter.
//!
//! A tcx program ([`Context::Received`], [`Context::Sent`]) has the `sk_buff` that a packet socket
//! has: ancillary values come from it, and the VLAN tag is already in its metadata.
//!
//! An XDP program sees the frame before the kernel has processed it: the VLAN tag is still in its
//! bytes, and there is no `sk_buff` with its metadata. The translation therefore contains the
//! program twice: once for frames without a tag, and once for frames with one, where offsets from
//! 12 on are 4 bytes higher.
//!
//! Every load is checked against the end of the frame. As in classic BPF, a load beyond it is no
//! match.
//!
//! | register | holds |
//! |---|---|
//! | R0 | A, and the result |
//! | R1 to R5 | nothing between two classic instructions |
//! | R6 | the context, `struct xdp_md` or `struct __sk_buff` |
//! | R7 | XDP: VLAN tag, type in bits 16 to 31, control information in bits 0 to 15; 0 is none |
//! | R8 | `data_end` |
//! | R9 | X |
//!
//! `data` is read from the context at each load instead of being kept in a register. A register
//! would carry the verified number of bytes into every join of two paths, and the verifier would
//! walk the code after the join again for each such number.
//!
//! [`crate::xdp`] embeds a filter in a capture program. [`translate`] makes a program that only
//! returns the result.

mod ancillary;
mod body;
mod entry;
mod filter;
mod layout;
mod load;
mod options;
#[cfg(test)]
mod tests;

pub(crate) use self::filter::Filter;
use self::layout::View;
pub(crate) use self::layout::{DEVICE_TAG, STACK_BYTES};
pub use self::options::{Context, MetadataFunctions, Options};
use crate::cbpf::Program;
use crate::ebpf::{
    Assembler, Instruction, Label,
    Register::{R0, R1, R6, R8},
    Size,
};
use crate::error::Error;

/// Returns a program that returns the filter's result, for tests and measurements.
pub fn translate(program: &Program, options: &Options) -> Result<Vec<Instruction>, Error> {
    let mut asm = Assembler::new();
    let (matched, unmatched) = (asm.label(), asm.label());
    asm.mov(R6, R1);
    let mut filter = Filter::new(program, options);
    filter.emit(&mut asm, matched, unmatched)?;
    asm.bind(unmatched);
    asm.mov(R0, 0);
    asm.bind(matched);
    asm.exit();
    filter.emit_functions(&mut asm);
    asm.finish()
}

impl Filter<'_> {
    /// Emits the filter. On entry R6 is the context; the filter may use R0 to R5 and R7 to R9. It
    /// jumps to `matched` with a nonzero result in R0, or to `unmatched`. R6 is preserved. A
    /// program with a refusal is an error, because the translation relies on the kernel's rules (no
    /// loop, no cell read before it is written).
    pub(crate) fn emit(
        &mut self,
        asm: &mut Assembler,
        matched: Label,
        unmatched: Label,
    ) -> Result<(), Error> {
        if let Some(refusal) = self.program.refusal() {
            return Err(refusal.clone());
        }
        if let Some(result) = self.constant() {
            self.emit_constant(asm, result, matched, unmatched);
            return Ok(());
        }
        if self.options.context.is_skb() {
            asm.load(Size::W, R8, R6, self.options.context.data_end());
            return self.emit_body(asm, View::Untagged, matched, unmatched);
        }
        let (untagged, tagged) = (asm.label(), asm.label());
        self.emit_entry(asm, untagged, tagged, unmatched);
        asm.bind(untagged);
        self.emit_untagged_header(asm);
        self.emit_body(asm, View::Untagged, matched, unmatched)?;
        asm.bind(tagged);
        self.emit_tagged_header(asm, unmatched);
        self.emit_body(asm, View::Tagged, matched, unmatched)
    }

    /// Returns the filter's result if it is the same for every frame and no part of the frame is
    /// needed from fragments or from the device.
    fn constant(&self) -> Option<i32> {
        if self.options.fragments || self.options.functions.rx_vlan_tag.is_some() {
            return None;
        }
        self.program.constant().map(|result| result as i32)
    }

    fn emit_body(
        &mut self,
        asm: &mut Assembler,
        view: View,
        matched: Label,
        unmatched: Label,
    ) -> Result<(), Error> {
        let labels = self.program.instructions().iter().map(|_| asm.label()).collect();
        let mut body = body::Body { filter: self, asm, view, matched, unmatched, labels };
        body.emit()
    }

    /// Returns the function that loads `size` at any offset; see [`load`].
    fn loader(&mut self, asm: &mut Assembler, view: View, size: Size) -> Label {
        let known = self.loaders.iter().find(|(v, s, _)| (*v, *s) == (view, size));
        if let Some((_, _, label)) = known {
            return *label;
        }
        let label = asm.label();
        self.loaders.push((view, size, label));
        label
    }

    /// Emits the functions that the filter calls, after the end of the program.
    pub(crate) fn emit_functions(&self, asm: &mut Assembler) {
        for (view, size, label) in &self.loaders {
            asm.bind(*label);
            load::emit_loader(asm, *view, *size, self.options);
        }
    }
}
