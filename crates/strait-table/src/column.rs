//! Values of one column while a record batch is filled.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::types::{ArrowPrimitiveType, UInt32Type};
use arrow_array::{ArrayRef, DictionaryArray, PrimitiveArray};
use arrow_buffer::{NullBufferBuilder, ScalarBuffer};
use arrow_schema::ArrowError;

/// Numbers, each of which can be missing.
pub(crate) struct Numbers<T: ArrowPrimitiveType> {
    values: Vec<T::Native>,
    valid: NullBufferBuilder,
    capacity: usize,
}

impl<T: ArrowPrimitiveType> Numbers<T> {
    /// Creates a column for `capacity` rows, which are allocated once a batch.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { values: Vec::with_capacity(capacity), valid: NullBufferBuilder::new(capacity), capacity }
    }

    /// Adds a value for each row.
    #[inline]
    pub(crate) fn extend<R>(&mut self, rows: &[R], value: impl Fn(&R) -> T::Native) {
        self.values.extend(rows.iter().map(value));
        self.valid.append_n_non_nulls(rows.len());
    }

    /// Adds a value or null for each row.
    #[inline]
    pub(crate) fn extend_optional<R>(&mut self, rows: &[R], mut value: impl FnMut(&R) -> Option<T::Native>) {
        let mut present = 0;
        self.values.extend(rows.iter().map(|row| {
            let value = value(row);
            present += usize::from(value.is_some());
            value.unwrap_or_default()
        }));
        // Most blocks have only values or only nulls, which costs nothing per row.
        match present {
            0 => self.valid.append_n_nulls(rows.len()),
            all if all == rows.len() => self.valid.append_n_non_nulls(all),
            _ => rows.iter().for_each(|row| self.valid.append(value(row).is_some())),
        }
    }

    /// Returns the number of rows.
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns the column and starts an empty one.
    pub(crate) fn finish(&mut self) -> PrimitiveArray<T> {
        let mut values = std::mem::replace(&mut self.values, Vec::with_capacity(self.capacity));
        // A program may keep many batches that ended early.
        values.shrink_to_fit();
        PrimitiveArray::new(ScalarBuffer::from(values), self.valid.finish())
    }
}

/// Numbers of values that a batch has once each.
pub(crate) type Keys = Numbers<UInt32Type>;

/// Texts, each distinct one once in a batch.
pub(crate) struct Texts {
    keys: Keys,
    numbers: HashMap<Box<str>, u32>,
    values: StringBuilder,
}

impl Texts {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { keys: Keys::new(capacity), numbers: HashMap::new(), values: StringBuilder::new() }
    }

    /// Adds the text of a row.
    pub(crate) fn push(&mut self, text: Option<&str>) {
        let number = text.map(|text| {
            self.numbers.get(text).copied().unwrap_or_else(|| {
                let number = self.numbers.len() as u32;
                self.numbers.insert(text.into(), number);
                self.values.append_value(text);
                number
            })
        });
        self.keys.extend_optional(&[number], |number| *number);
    }

    /// Returns the column and starts an empty one.
    pub(crate) fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        self.numbers.clear();
        dictionary(self.keys.finish(), Arc::new(self.values.finish()))
    }
}

/// Returns a column of `values` selected by `keys`.
pub(crate) fn dictionary(keys: PrimitiveArray<UInt32Type>, values: ArrayRef) -> Result<ArrayRef, ArrowError> {
    Ok(Arc::new(DictionaryArray::try_new(keys, values)?))
}
