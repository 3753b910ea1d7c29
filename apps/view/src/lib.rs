//! The viewer of a volumetric stream.
