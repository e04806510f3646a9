//! Translation of the classic instructions, one by one.
//!
//! [`Filter::emit`](super::Filter::emit) runs a [`Body`] for each kind of frame. [`super::load`]
//! translates frame loads and [`super::ancillary`] loads of ancillary values.

use super::filter::Filter;
use super::layout::{MEMORY, SAVED_A, View, size_of};
use crate::cbpf::{Instruction, opcode as cop};
use crate::ebpf::{
    Assembler, Condition, Label, Operand, Operation,
    Register::{self, R0, R1, R6, R8, R9, R10},
    Size, opcode as op,
};
use crate::error::Error;
use crate::interpret::TAG_LEN;

/// The program for one kind of frame.
pub(super) struct Body<'b, 'f, 'p> {
    pub(super) filter: &'f mut Filter<'p>,
    pub(super) asm: &'b mut Assembler,
    pub(super) view: View,
    pub(super) matched: Label,
    pub(super) unmatched: Label,
    /// Labels of the classic instructions.
    pub(super) labels: Vec<Label>,
}

impl Body<'_, '_, '_> {
    pub(super) fn emit(&mut self) -> Result<(), Error> {
        self.asm.mov(R0, 0);
        self.asm.mov(R9, 0);
        let program = self.filter.program;
        for (at, &instruction) in program.instructions().iter().enumerate() {
            self.asm.bind(self.labels[at]);
            self.instruction(at, instruction)?;
        }
        Ok(())
    }

    fn instruction(&mut self, at: usize, i: Instruction) -> Result<(), Error> {
        match i.code & cop::CLASS {
            cop::LD => self.load(at, i)?,
            cop::LDX => self.load_x(i),
            cop::ST => self.asm.store(Size::W, R10, cell(i.k), R0),
            cop::STX => self.asm.store(Size::W, R10, cell(i.k), R9),
            cop::ALU => self.alu(i),
            cop::JMP => self.jump(at, i),
            cop::RET => self.ret(i),
            _ if i.code & cop::TXA != 0 => self.asm.alu32(Operation::Mov, R0, R9),
            _ => self.asm.alu32(Operation::Mov, R9, R0),
        }
        Ok(())
    }

    fn load(&mut self, at: usize, i: Instruction) -> Result<(), Error> {
        match i.code & cop::MODE {
            cop::ABS if i.k >= cop::SKF_AD_OFF as u32 => return self.ancillary(at, i.k),
            cop::ABS => self.load_absolute(i.k, size_of(i.code)),
            cop::IND => self.load_indirect(i.k, size_of(i.code)),
            cop::MEM => self.asm.load(Size::W, R0, R10, cell(i.k)),
            cop::LEN => self.load_len(R0),
            _ => self.asm.alu32(Operation::Mov, R0, i.k as i32),
        }
        Ok(())
    }

    fn load_x(&mut self, i: Instruction) {
        match i.code & cop::MODE {
            cop::MSH => self.load_header_len(i.k),
            cop::MEM => self.asm.load(Size::W, R9, R10, cell(i.k)),
            cop::LEN => self.load_len(R9),
            _ => self.asm.alu32(Operation::Mov, R9, i.k as i32),
        }
    }

    /// `dst` = the length of the frame without its tag.
    fn load_len(&mut self, dst: Register) {
        let asm = &mut *self.asm;
        if self.filter.options.context.is_skb() {
            return asm.load(Size::W, dst, R6, op::SKB_LEN);
        }
        if self.filter.options.fragments {
            asm.store(Size::W, R10, SAVED_A, R0);
            asm.mov(R1, R6);
            asm.call(op::XDP_GET_BUFF_LEN);
            if dst != R0 {
                asm.mov(dst, R0);
                asm.load(Size::W, R0, R10, SAVED_A);
            }
        } else {
            asm.load(Size::W, R1, R6, op::XDP_MD_DATA);
            asm.mov(dst, R8);
            asm.alu(Operation::Sub, dst, R1);
        }
        if self.view == View::Tagged {
            asm.alu32(Operation::Sub, dst, TAG_LEN as i32);
        }
    }

    fn alu(&mut self, i: Instruction) {
        let operand = operand(i);
        let divides = [cop::DIV, cop::MOD].contains(&(i.code & cop::OPERATION));
        if divides && operand == Operand::Register(R9) {
            self.asm.jump32_if(Condition::Equal, R9, 0, self.unmatched);
        }
        let operation = match i.code & cop::OPERATION {
            cop::ADD => Operation::Add,
            cop::SUB => Operation::Sub,
            cop::MUL => Operation::Mul,
            cop::DIV => Operation::Div,
            cop::MOD => Operation::Mod,
            cop::AND => Operation::And,
            cop::OR => Operation::Or,
            cop::XOR => Operation::Xor,
            cop::LSH => Operation::Lsh,
            cop::RSH => Operation::Rsh,
            _ => return self.asm.negate32(R0),
        };
        self.asm.alu32(operation, R0, operand);
    }

    fn jump(&mut self, at: usize, i: Instruction) {
        let next = at + 1;
        let (condition, inverse) = match i.code & cop::OPERATION {
            cop::JEQ => (Condition::Equal, Some(Condition::NotEqual)),
            cop::JGT => (Condition::Greater, Some(Condition::LessOrEqual)),
            cop::JGE => (Condition::GreaterOrEqual, Some(Condition::Less)),
            cop::JSET => (Condition::AnyBitSet, None),
            _ => return self.asm.jump(self.labels[next + i.k as usize]),
        };
        let (holds, fails) = (self.labels[next + usize::from(i.jt)], self.labels[next + usize::from(i.jf)]);
        match inverse {
            _ if i.jt == i.jf => self.asm.jump(holds),
            Some(inverse) if i.jt == 0 => self.asm.jump32_if(inverse, R0, operand(i), fails),
            _ => {
                self.asm.jump32_if(condition, R0, operand(i), holds);
                self.asm.jump(fails);
            }
        }
    }

    fn ret(&mut self, i: Instruction) {
        if i.code == cop::RET | cop::A {
            self.asm.jump32_if(Condition::Equal, R0, 0, self.unmatched);
        } else if i.k == 0 {
            return self.asm.jump(self.unmatched);
        } else {
            self.asm.alu32(Operation::Mov, R0, i.k as i32);
        }
        self.asm.jump(self.matched);
    }
}

/// Returns the stack slot of a scratch memory cell.
fn cell(k: u32) -> i16 {
    MEMORY + 4 * k as i16
}

fn operand(i: Instruction) -> Operand {
    if i.code & cop::X == 0 { Operand::Constant(i.k as i32) } else { Operand::Register(R9) }
}
