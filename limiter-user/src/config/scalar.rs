//! Values that stand as text or as a whole number, and what reads them.
//!
//! Each has a `format` in the schema, by which [`FORMATS`] finds its reader.

use std::{borrow::Cow, fmt, marker::PhantomData};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, Visitor},
    ser::SerializeSeq,
};

use super::{
    protocol::Protocol,
    ranges::{PortRange, VlanRange},
    values::{Algorithm, Argument, Metrics, OnStop, Webhook, XdpMode},
};
use crate::{
    bytes::{Amount, Bandwidth, ByteBurst},
    error,
    mode::Mode,
    prefix::Prefix,
    rate::{Burst, PacketRate},
};

/// A value that is read from text; a whole number is read from its digits.
pub(super) trait Scalar: Sized {
    /// Its `format` in the schema.
    const FORMAT: &'static str;
    /// What it is, in words with examples.
    const WHAT: &'static str;
    /// Whether it may also stand as a number.
    const NUMBER: bool = false;

    /// The only texts that there are; none if they are not to be listed.
    fn choices() -> Vec<&'static str> {
        Vec::new()
    }

    /// The value of that text.
    fn read(text: &str) -> error::Result<Self>;

    /// The text or number that [`Scalar::read`] makes the same value of.
    fn written(&self) -> Written;
}

/// How a value stands in a file.
pub(super) enum Written {
    /// As a whole number.
    Number(u32),
    /// As text.
    Text(String),
}

/// A reader that only checks.
pub(super) struct Format {
    /// Its name in the schema.
    pub(super) name: &'static str,
    /// What the value is, in words.
    pub(super) what: &'static str,
    /// Whether it may also stand as a number.
    pub(super) number: bool,
    /// Refuses what is no such value.
    pub(super) check: fn(&str) -> error::Result<()>,
}

const fn format<T: Scalar>() -> Format {
    Format {
        name: T::FORMAT,
        what: T::WHAT,
        number: T::NUMBER,
        check: |text| T::read(text).map(drop),
    }
}

/// All formats of the schema.
pub(super) const FORMATS: [Format; 18] = [
    format::<Algorithm>(),
    format::<Amount>(),
    format::<Argument>(),
    format::<Bandwidth>(),
    format::<Burst>(),
    format::<ByteBurst>(),
    format::<Metrics>(),
    format::<Mode>(),
    format::<OnStop>(),
    format::<PacketRate>(),
    format::<limiter_common::parse::Kind>(),
    format::<PortRange>(),
    format::<Prefix>(),
    format::<Protocol>(),
    format::<String>(),
    format::<VlanRange>(),
    format::<Webhook>(),
    format::<XdpMode>(),
];

fn schema_of<T: Scalar>() -> Schema {
    let choices = T::choices();
    if choices.is_empty() && T::NUMBER {
        json_schema!({ "type": ["string", "integer"], "format": T::FORMAT })
    } else if choices.is_empty() {
        json_schema!({ "type": "string", "format": T::FORMAT })
    } else {
        json_schema!({ "type": "string", "format": T::FORMAT, "enum": choices })
    }
}

fn serialize<T: Scalar, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    match value.written() {
        Written::Number(number) => serializer.serialize_u32(number),
        Written::Text(text) => serializer.serialize_str(&text),
    }
}

/// Reads one value, or with [`Visitor::visit_seq`] a list of them.
struct Values<T>(PhantomData<T>);

impl<'de, T: Scalar> Visitor<'de> for Values<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::WHAT)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<T>, E> {
        T::read(text).map(|value| vec![value]).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Vec<T>, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Vec<T>, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
        let mut values = Vec::new();
        while let Some(One(value)) = items.next_element()? {
            values.push(value);
        }
        Ok(values)
    }
}

/// Exactly one value.
struct One<T>(T);

impl<'de, T: Scalar> Deserialize<'de> for One<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut values = deserializer.deserialize_any(Values(PhantomData))?;
        match values.pop() {
            Some(value) if values.is_empty() => Ok(Self(value)),
            _ => Err(de::Error::custom(T::WHAT)),
        }
    }
}

struct Shown<'a, T>(&'a T);

impl<T: Scalar> Serialize for Shown<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize(self.0, serializer)
    }
}

/// A list that may also stand as its only value.
pub(super) struct List<T>(PhantomData<T>);

impl<T: Scalar> List<T> {
    pub(super) fn serialize<S: Serializer>(values: &[T], serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(values.len()))?;
        for value in values {
            list.serialize_element(&Shown(value))?;
        }
        list.end()
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error> {
        deserializer.deserialize_any(Values(PhantomData))
    }
}

impl<T: Scalar> JsonSchema for List<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("{}-list", T::FORMAT).into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let item = schema_of::<T>();
        json_schema!({ "anyOf": [item, { "type": "array", "items": item }] })
    }
}

macro_rules! in_schema {
    ($($type:ty),*) => {$(
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                <Self as Scalar>::FORMAT.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                schema_of::<Self>()
            }
        }
    )*};
}

macro_rules! in_files {
    ($($type:ty),*) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serialize(self, serializer)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                One::deserialize(deserializer).map(|One(value)| value)
            }
        }
    )*};
}

in_schema!(
    Algorithm, Amount, Bandwidth, Burst, ByteBurst, Metrics, Mode, OnStop, PacketRate, Prefix,
    Webhook, XdpMode
);
in_files!(
    Algorithm, Amount, Bandwidth, Burst, ByteBurst, Metrics, Mode, OnStop, PacketRate, Webhook,
    XdpMode
);
