//! The publisher of a volumetric recording.
