use super::*;
use std::collections::BTreeMap;

/// Reads a target from files in memory whose root is `lib.rs`.
fn tree(files: &[(&str, &str)]) -> Tree {
    let files: BTreeMap<_, _> = files.iter().copied().collect();
    let read = |path: &Path| {
        let text = files.get(path.to_str().unwrap());
        text.map(|text| text.to_string())
            .with_context(|| format!("{} is missing", path.display()))
    };
    Tree::read(Path::new("lib.rs"), &read).unwrap()
}

fn circles(files: &[(&str, &str)]) -> Vec<String> {
    circles_of(&tree(files), Utf8Path::new(""))
}

/// Returns the circles of the files `a.rs` and `b.rs`.
fn circles_between(a: &str, b: &str) -> Vec<String> {
    circles(&[("lib.rs", "mod a; mod b;"), ("a.rs", a), ("b.rs", b)])
}

const USES_A: &str = "use crate::a::A; struct B;";

#[test]
fn two_files_that_use_each_other_are_a_circle() {
    assert_eq!(
        circles_between("use crate::b::B; struct A;", USES_A),
        ["a.rs -> b.rs (crate::b::B) -> a.rs (crate::a::A)"]
    );
}

#[test]
fn use_in_one_direction_is_no_circle() {
    assert!(circles_between("struct A;", USES_A).is_empty());
}

#[test]
fn a_longer_circle_is_named_from_file_to_file() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b::B; struct A;"),
        ("b.rs", "use crate::c::C; struct B;"),
        ("c.rs", "use crate::a::A; struct C;"),
    ];
    assert_eq!(
        circles(&files),
        ["a.rs -> b.rs (crate::b::B) -> c.rs (crate::c::C) -> a.rs (crate::a::A)"]
    );
}

#[test]
fn every_way_to_name_something_counts() {
    for a in [
        "struct A(crate::b::B);",
        "struct A; fn f() { super::b::g() }",
        "struct A; fn f() { use crate::b::g; }",
        "struct A; use super::b::{self, c::C};",
        "struct A; use crate::b::*;",
        "struct A; use crate::b as other; fn f() { other::g() }",
        "struct A; fn f() { assert!(crate::b::g()) }",
        "struct A; macro_rules! m { () => { $crate::b::g() } }",
        "struct A; #[arg(value_parser = crate::b::g)] struct C;",
        "struct A; impl crate::b::B for A {}",
        "struct A; pub use crate::b::B;",
        "struct A; fn f() { <A as crate::b::B>::g() }",
    ] {
        assert_eq!(circles_between(a, USES_A).len(), 1, "{a}");
    }
}

#[test]
fn names_outside_code_do_not_count() {
    for a in [
        "struct A; // crate::b::B",
        "/// See [`crate::b::B`].\nstruct A;",
        "struct A; const TEXT: &str = \"crate::b::B\";",
        "struct A; #[cfg(test)] mod tests { use crate::b::B; }",
        "struct A; #[cfg(test)] use crate::b::B;",
        "struct A; impl A { #[cfg(test)] fn f() { crate::b::g() } }",
        "struct A; use ::b::B; use b::C;",
    ] {
        assert!(circles_between(a, USES_A).is_empty(), "{a}");
    }
}

#[test]
fn other_conditions_than_tests_count() {
    let a = "struct A; #[cfg(feature = \"b\")] use crate::b::B;";
    assert_eq!(circles_between(a, USES_A).len(), 1);
}

#[test]
fn a_re_export_leads_to_the_file_of_the_definition() {
    let files = [
        (
            "lib.rs",
            "mod a; mod b; pub use a::A; pub use b::B as Other;",
        ),
        ("a.rs", "use crate::Other; pub struct A;"),
        ("b.rs", "use crate::A; pub struct B;"),
    ];
    assert_eq!(
        circles(&files),
        ["a.rs -> b.rs (crate::Other) -> a.rs (crate::A)"]
    );
}

#[test]
fn a_name_from_a_glob_leads_to_the_file_of_the_definition() {
    let files = [
        ("lib.rs", "mod a; mod b; pub use a::*; pub use b::*;"),
        ("a.rs", "use super::*; pub struct A(B);"),
        ("b.rs", "use super::A; pub struct B;"),
    ];
    assert_eq!(circles(&files), ["a.rs -> b.rs (B) -> a.rs (super::A)"]);
}

#[test]
fn a_module_and_its_submodules_are_one_unit() {
    let files = [
        ("lib.rs", "mod a; use a::inner::deep::D;"),
        ("a.rs", "mod inner; use inner::I; pub struct A;"),
        ("a/inner.rs", "pub mod deep; use super::A; pub struct I;"),
        (
            "a/inner/deep.rs",
            "use crate::a::A; use super::I; pub struct D;",
        ),
    ];
    assert!(circles(&files).is_empty());
}

#[test]
fn submodules_of_one_module_are_not() {
    let files = [
        ("lib.rs", "mod a;"),
        ("a.rs", "mod one; mod two; use one::One; use two::Two;"),
        ("a/one.rs", "use super::Two; pub struct One;"),
        ("a/two.rs", "use super::one::One; pub struct Two;"),
    ];
    assert_eq!(
        circles(&files),
        ["a/one.rs -> a/two.rs (super::Two) -> a/one.rs (super::one::One)"]
    );
}

#[test]
fn modules_within_a_file_belong_to_it() {
    let a = "mod inner { use super::super::b::B; } struct A;";
    assert_eq!(circles_between(a, USES_A).len(), 1);
    let a = "mod inner { pub use super::A; } struct A;";
    assert!(circles_between(a, "use crate::a::inner::A;").is_empty());
}

#[test]
fn modules_are_found_where_the_compiler_finds_them() {
    let files = [
        ("lib.rs", "mod a; #[path = \"elsewhere/c.rs\"] mod b;"),
        ("a/mod.rs", "mod inner; use inner::I;"),
        ("a/inner.rs", "pub struct I(crate::b::B);"),
        ("elsewhere/c.rs", "pub struct B(crate::a::inner::I);"),
    ];
    assert_eq!(
        circles(&files),
        ["a/inner.rs -> elsewhere/c.rs (crate::b::B) -> a/inner.rs (crate::a::inner::I)"]
    );
}

#[test]
fn a_macros_name_belongs_to_the_file_of_its_module() {
    let a = "define! { A } struct B; use crate::b::C;";
    assert_eq!(circles_between(a, USES_A).len(), 1);
}

#[test]
fn each_group_of_files_gives_one_line() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c; mod d; mod e;"),
        ("a.rs", "use crate::b::B; use crate::c::C; pub struct A;"),
        ("b.rs", "use crate::c::C; pub struct B;"),
        ("c.rs", "use crate::a::A; pub struct C;"),
        ("d.rs", "use crate::e::E; use crate::a::A; pub struct D;"),
        ("e.rs", "use crate::d::D; pub struct E;"),
    ];
    assert_eq!(
        circles(&files),
        [
            "a.rs -> c.rs (crate::c::C) -> a.rs (crate::a::A)",
            "d.rs -> e.rs (crate::e::E) -> d.rs (crate::d::D)",
        ]
    );
}

#[test]
fn a_circle_through_a_submodule_is_one() {
    let files = [
        ("lib.rs", "mod apply; mod tenant;"),
        ("apply.rs", "use crate::tenant::T; struct A;"),
        ("tenant.rs", "mod cascade; use cascade::C; struct T;"),
        ("tenant/cascade.rs", "use crate::apply::A; struct C;"),
    ];
    assert_eq!(
        circles(&files),
        [
            "apply.rs -> tenant.rs (crate::tenant::T), of which tenant/cascade.rs -> apply.rs (crate::apply::A)"
        ]
    );
}
