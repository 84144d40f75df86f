// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what a variable is: name, element type, shape, place in a global array.
//! Invariants: sizes are checked so that no product of them overflows.
//! Format: docs/format/store.md, section "Descriptors".

use crate::bytes::{Decoder, Encoder, FormatError};
use crate::element::ElementType;
use crate::file::StoredFile;
use crate::limits::{DIMENSIONS_MAX, NAME_BYTES_MAX, VARIABLE_BYTES_MAX, VARIABLES_MAX};
use crate::width::to_u64;

const STRUCTURE: &str = "descriptor";
const FLAG_SLAB: u8 = 1;
const FLAG_FILE: u8 = 2;

/// Place of a rank's part in a global array, row-major.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Slab {
    /// Shape of the global array, in elements.
    pub global_shape: Vec<u64>,
    /// Where this part begins, in elements.
    pub start: Vec<u64>,
}

/// What a variable is on one rank.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct VariableDescriptor {
    /// Its name, unique on the rank.
    pub name: String,
    /// Type of its elements.
    pub element: ElementType,
    /// Shape of this rank's part, in elements, row-major; empty for a scalar.
    pub shape: Vec<u64>,
    /// Its place in a global array, if it is part of one.
    pub slab: Option<Slab>,
    /// The file whose bytes it holds, if it is one.
    pub file: Option<StoredFile>,
}

impl VariableDescriptor {
    /// Elements of this rank's part; `None` if the product overflows.
    pub fn element_count(&self) -> Option<u64> {
        self.shape
            .iter()
            .try_fold(1u64, |product, &extent| product.checked_mul(extent))
    }

    /// Bytes of this rank's part; `None` above [`VARIABLE_BYTES_MAX`].
    pub fn length_bytes(&self) -> Option<u64> {
        let bytes = self
            .element_count()?
            .checked_mul(self.element.width_bytes())?;
        (bytes <= VARIABLE_BYTES_MAX).then_some(bytes)
    }

    /// Checks name, dimensions, size and slab; the error says which rule is broken.
    pub fn validate(&self) -> Result<(), FormatError> {
        let refuse = |field, expected: String, found: String| {
            Err(FormatError::new(STRUCTURE, field, 0, expected, found))
        };
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX {
            let found = format!("{} bytes", self.name.len());
            return refuse("name", format!("1 to {NAME_BYTES_MAX} bytes"), found);
        }
        if self.shape.len() > DIMENSIONS_MAX {
            let found = self.shape.len().to_string();
            return refuse("dimensions", format!("at most {DIMENSIONS_MAX}"), found);
        }
        if self.length_bytes().is_none() {
            let found = format!("shape {:?} of {}", self.shape, self.element);
            return refuse(
                "shape",
                format!("at most {VARIABLE_BYTES_MAX} bytes"),
                found,
            );
        }
        if let Some(file) = &self.file {
            return self.validate_file(file);
        }
        let Some(slab) = &self.slab else {
            return Ok(());
        };
        if slab.global_shape.len() != self.shape.len() || slab.start.len() != self.shape.len() {
            let found = format!("{} and {}", slab.global_shape.len(), slab.start.len());
            return refuse("slab", format!("{} dimensions", self.shape.len()), found);
        }
        for ((&extent, &start), &whole) in
            self.shape.iter().zip(&slab.start).zip(&slab.global_shape)
        {
            if start.checked_add(extent).is_none_or(|end| end > whole) {
                let found = format!("start {start} and extent {extent}");
                return refuse("slab", format!("an end of at most {whole}"), found);
            }
        }
        let whole = Self {
            shape: slab.global_shape.clone(),
            slab: None,
            ..self.clone()
        };
        if whole.length_bytes().is_none() {
            let found = format!("global shape {:?}", slab.global_shape);
            return refuse("slab", format!("at most {VARIABLE_BYTES_MAX} bytes"), found);
        }
        Ok(())
    }

    fn validate_file(&self, file: &StoredFile) -> Result<(), FormatError> {
        match (&*self.shape, &self.slab) {
            (&[stored], None) if self.element == ElementType::Bytes => file.validate(stored),
            (shape, slab) => {
                let place = if slab.is_some() { ", a slab" } else { "" };
                let found = format!("{} {shape:?}{place}", self.element);
                let expected = "bytes of one dimension, of no global array";
                Err(FormatError::new(STRUCTURE, "file", 0, expected, found))
            }
        }
    }

    /// Fewest bytes of an encoded descriptor: a scalar whose name has one byte.
    pub const BYTES_MIN: usize = 7;

    /// The bytes of a list of these.
    pub fn encode_list(list: &[Self]) -> Result<Vec<u8>, FormatError> {
        let mut body = Encoder::new(STRUCTURE);
        for descriptor in list {
            descriptor.put(&mut body);
        }
        body.finish(list, |bytes| Self::decode_list(bytes, list.len()))
    }

    /// Appends its bytes.
    pub(crate) fn put(&self, encoder: &mut Encoder) {
        let slab = if self.slab.is_some() { FLAG_SLAB } else { 0 };
        let file = if self.file.is_some() { FLAG_FILE } else { 0 };
        let flags = slab | file;
        encoder.text(&self.name).u8(self.element.id()).u8(flags);
        encoder.u16(u16::try_from(self.shape.len()).unwrap_or(u16::MAX));
        for &extent in &self.shape {
            encoder.u64(extent);
        }
        if let Some(slab) = &self.slab {
            for &value in slab.global_shape.iter().chain(&slab.start) {
                encoder.u64(value);
            }
        }
        if let Some(file) = &self.file {
            file.put(encoder);
        }
    }

    /// The descriptors in `bytes`: `count` of them, in ascending order of their names.
    pub fn decode_list(bytes: &[u8], count: usize) -> Result<Vec<Self>, FormatError> {
        let mut body = Decoder::new(STRUCTURE, bytes);
        if count > VARIABLES_MAX {
            return Err(body.refuse("count", 0, format!("at most {VARIABLES_MAX}"), count));
        }
        let mut list: Vec<Self> = Vec::with_capacity(count.min(bytes.len() / Self::BYTES_MIN));
        for _ in 0..count {
            let descriptor = Self::decode(&mut body)?;
            if list.last().is_some_and(|last| last.name >= descriptor.name) {
                return Err(body.refuse("name", 0, "ascending names", &descriptor.name));
            }
            list.push(descriptor);
        }
        body.end()?;
        Ok(list)
    }

    fn decode(body: &mut Decoder<'_>) -> Result<Self, FormatError> {
        let begin = to_u64(body.position());
        let name = body.text("name", NAME_BYTES_MAX)?;
        let id = body.u8("element type")?;
        let element = ElementType::from_id(id)
            .ok_or_else(|| body.refuse("element type", 1, "1 to 15", id))?;
        let flags = body.u8("flags")?;
        if flags & !(FLAG_SLAB | FLAG_FILE) != 0 {
            return Err(body.refuse("flags", 1, "0 to 3", flags));
        }
        let dimensions = usize::from(body.u16("dimensions")?);
        if dimensions > DIMENSIONS_MAX {
            return Err(body.refuse(
                "dimensions",
                2,
                format!("at most {DIMENSIONS_MAX}"),
                dimensions,
            ));
        }
        let mut extents = |field| -> Result<Vec<u64>, FormatError> {
            (0..dimensions).map(|_| body.u64(field)).collect()
        };
        let shape = extents("shape")?;
        let slab = if flags & FLAG_SLAB == 0 {
            None
        } else {
            Some(Slab {
                global_shape: extents("global shape")?,
                start: extents("start")?,
            })
        };
        let file = if flags & FLAG_FILE == 0 {
            None
        } else {
            Some(StoredFile::decode(body)?)
        };
        let descriptor = Self {
            name,
            element,
            shape,
            slab,
            file,
        };
        match descriptor.validate() {
            Ok(()) => Ok(descriptor),
            Err(error) => Err(FormatError {
                offset: begin,
                ..error
            }),
        }
    }
}
