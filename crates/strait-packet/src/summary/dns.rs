//! DNS in a line: `4660+ A? example.net. (29)` and `4660 1/0/0 A 192.0.2.1 (45)`.

use std::fmt;

use super::Line;
use crate::dns::{Data, Dns, Record, kind};

/// Maximum number of answers written; the rest is `...`.
const ANSWERS_MAX: usize = 16;

const OPCODES: [&str; 7] = ["", " inv_q", " stat", " op3", " notify", " update", " stateful"];

const RESPONSE_CODES: [&str; 6] = ["", " FormErr", " ServFail", " NXDomain", " NotImp", " Refused"];

impl Line<'_> {
    /// Writes a DNS message of `len` bytes on the wire. Returns false and writes nothing if it has
    /// no readable header and first question.
    pub(super) fn dns(&mut self, message: &[u8], len: usize) -> Result<bool, fmt::Error> {
        let Ok(dns) = Dns::parse(message) else { return Ok(false) };
        if matches!(dns.question(), Some(Err(_))) {
            return Ok(false);
        }
        write!(self.out, "{}", dns.id())?;
        self.code(&OPCODES, "op", dns.opcode())?;
        if dns.is_response() {
            self.response(&dns)?;
        } else {
            self.query(&dns)?;
        }
        write!(self.out, " ({len})")?;
        Ok(true)
    }

    fn query(&mut self, dns: &Dns<'_>) -> fmt::Result {
        self.marks(dns.flags(), &[(0x0100, '+'), (0x0010, '%')])?;
        let [questions, answers, authorities, additional] = dns.counts();
        let expected = [(questions, "q", 1), (answers, "a", 0), (authorities, "n", 0), (additional, "au", 0)];
        for (count, unit, _) in expected.iter().filter(|(count, _, usual)| count != usual) {
            write!(self.out, " [{count}{unit}]")?;
        }
        let Some(Ok(question)) = dns.question() else { return Ok(()) };
        self.out.write_char(' ')?;
        self.kind(question.kind)?;
        write!(self.out, "? {}", question.name)
    }

    fn response(&mut self, dns: &Dns<'_>) -> fmt::Result {
        self.code(&RESPONSE_CODES, "resp", dns.response_code())?;
        self.marks(dns.flags(), &[(0x0400, '*')])?;
        self.marks(!dns.flags(), &[(0x0080, '-')])?;
        self.marks(dns.flags(), &[(0x0200, '|'), (0x0020, '$')])?;
        let [questions, answers, authorities, additional] = dns.counts();
        if questions != 1 {
            write!(self.out, " [{questions}q]")?;
        }
        write!(self.out, " {answers}/{authorities}/{additional}")?;
        self.answers(dns)
    }

    fn answers(&mut self, dns: &Dns<'_>) -> fmt::Result {
        let Ok(answers) = dns.answers() else { return self.out.write_str(" [|domain]") };
        for (place, answer) in answers.enumerate() {
            let Ok(answer) = answer else { return self.out.write_str(" [|domain]") };
            if place == ANSWERS_MAX {
                return self.out.write_str(", ...");
            }
            self.out.write_str(if place > 0 { ", " } else { " " })?;
            self.record(&answer)?;
        }
        Ok(())
    }

    fn record(&mut self, record: &Record<'_>) -> fmt::Result {
        self.kind(record.kind)?;
        match record.data {
            Data::A(address) => write!(self.out, " {address}"),
            Data::Aaaa(address) => write!(self.out, " {address}"),
            Data::Name(name) => write!(self.out, " {name}"),
            Data::Other(_) => Ok(()),
        }
    }

    fn kind(&mut self, kind: u16) -> fmt::Result {
        match kind::name(kind) {
            Some(name) => self.out.write_str(name),
            None => write!(self.out, "Type{kind}"),
        }
    }

    /// Returns the name of a code, or `unnamed` and the number if it has none.
    fn code(&mut self, names: &[&str], unnamed: &str, code: u8) -> fmt::Result {
        match names.get(usize::from(code)) {
            Some(name) => self.out.write_str(name),
            None => write!(self.out, " {unnamed}{code}"),
        }
    }

    fn marks(&mut self, bits: u16, marks: &[(u16, char)]) -> fmt::Result {
        let set = marks.iter().filter(|(bit, _)| bits & bit != 0);
        set.into_iter().try_for_each(|(_, mark)| self.out.write_char(*mark))
    }
}
