//! Values of the constants in a crate's sources, for the documents that state them.
//!
//! `claims` compares them with the documents. It evaluates literals, sums, products, shifts and the
//! usual constructors of durations and sizes; other expressions have no value here.

use std::path::Path;

use syn::visit::{self, Visit};
use syn::{BinOp, Expr, Ident, Lit};

use crate::source::File;

/// Value of a constant, in its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Number(u128),
    Milliseconds(u128),
}

/// Returns the values of all constants named `name` below `folder`; `None` for an unsupported
/// expression.
pub(super) fn find(files: &[File], folder: &Path, name: &str) -> Vec<Option<Value>> {
    let mut constants = Constants::default();
    for file in files.iter().filter(|file| file.has_extension("rs") && file.path.starts_with(folder)) {
        if let Ok(parsed) = syn::parse_file(&file.text) {
            constants.visit_file(&parsed);
        }
    }
    constants
        .0
        .iter()
        .filter(|(own, _)| own == name)
        .map(|(_, expression)| constants.value(expression))
        .collect()
}

/// Reads `32 KiB`, `600 lines`, `1,024` or `10 s`.
pub(super) fn parse(text: &str) -> Option<Value> {
    let mut words = text.split_whitespace();
    let number: u128 = words.next()?.replace(',', "").parse().ok()?;
    Some(match words.next() {
        Some("KiB") => Value::Number(number << 10),
        Some("MiB") => Value::Number(number << 20),
        Some("GiB") => Value::Number(number << 30),
        Some("TiB") => Value::Number(number << 40),
        Some("ms") => Value::Milliseconds(number),
        Some("s") => Value::Milliseconds(number * 1000),
        Some("minutes" | "minute") => Value::Milliseconds(number * 60_000),
        _ => Value::Number(number),
    })
}

#[derive(Default)]
struct Constants(Vec<(Ident, Expr)>);

impl<'ast> Visit<'ast> for Constants {
    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.0.push((item.ident.clone(), (*item.expr).clone()));
        visit::visit_item_const(self, item);
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.0.push((item.ident.clone(), item.expr.clone()));
    }
}

impl Constants {
    fn value(&self, expression: &Expr) -> Option<Value> {
        match expression {
            Expr::Call(call) => self.constructed(call),
            other => self.number(other).map(Value::Number),
        }
    }

    /// Evaluates a constructor such as `Duration::from_secs(5)` or `ByteSize::mib(16)`.
    fn constructed(&self, call: &syn::ExprCall) -> Option<Value> {
        let Expr::Path(path) = &*call.func else { return None };
        let number = self.number(call.args.first()?)?;
        Some(match path.path.segments.last()?.ident.to_string().as_str() {
            "from_millis" => Value::Milliseconds(number),
            "from_secs" => Value::Milliseconds(number * 1000),
            "from_mins" => Value::Milliseconds(number * 60_000),
            "from_hours" => Value::Milliseconds(number * 3_600_000),
            "kib" => Value::Number(number << 10),
            "mib" => Value::Number(number << 20),
            "gib" => Value::Number(number << 30),
            _ => return None,
        })
    }

    fn number(&self, expression: &Expr) -> Option<u128> {
        match expression {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Int(number) => number.base10_parse().ok(),
                _ => None,
            },
            Expr::Paren(inner) => self.number(&inner.expr),
            Expr::Cast(inner) => self.number(&inner.expr),
            Expr::Binary(binary) => {
                let (left, right) = (self.number(&binary.left)?, self.number(&binary.right)?);
                match binary.op {
                    BinOp::Add(_) => left.checked_add(right),
                    BinOp::Sub(_) => left.checked_sub(right),
                    BinOp::Mul(_) => left.checked_mul(right),
                    BinOp::Shl(_) => left.checked_shl(u32::try_from(right).ok()?),
                    _ => None,
                }
            }
            Expr::Path(path) => self.named(&path.path),
            _ => None,
        }
    }

    fn named(&self, path: &syn::Path) -> Option<u128> {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        match names.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["i64", "MAX"] => Some(i64::MAX as u128),
            ["u32", "MAX"] => Some(u32::MAX.into()),
            [.., name] => {
                let expression =
                    self.0.iter().find(|(own, _)| own == name).map(|(_, expression)| expression)?;
                matches!(expression, Expr::Lit(_) | Expr::Binary(_)).then(|| self.number(expression))?
            }
            [] => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str, name: &str) -> Vec<Option<Value>> {
        find(&[File { path: "a/src/lib.rs".into(), text: text.into() }], Path::new("a"), name)
    }

    #[test]
    fn values_are_evaluated() {
        let text = "const A: u32 = 64 << 10; mod m { const B: u64 = (super::A as u64 - 1) * 2; }
            impl T { const C: Duration = Duration::from_secs(5); } const D: S = S::mib(16); const E: f64 = 0.5;";
        assert_eq!(value(text, "A"), [Some(Value::Number(65_536))]);
        assert_eq!(value(text, "B"), [Some(Value::Number(131_070))]);
        assert_eq!(value(text, "C"), [Some(Value::Milliseconds(5000))]);
        assert_eq!(value(text, "D"), [Some(Value::Number(16 << 20))]);
        assert_eq!(value(text, "E"), [None]);
        assert!(value(text, "F").is_empty());
    }

    #[test]
    fn quantities_are_read() {
        assert_eq!(parse("32 KiB"), Some(Value::Number(32 << 10)));
        assert_eq!(parse("1,024 connections"), Some(Value::Number(1024)));
        assert_eq!(parse("10 s"), Some(Value::Milliseconds(10_000)));
        assert_eq!(parse("none"), None);
    }
}
