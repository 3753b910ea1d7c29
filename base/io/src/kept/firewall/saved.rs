//! The rules that `iptables-save` prints, as rules of nftables.

use super::Chain;
use serde_json::{Value, json};

/// Returns the chains of the output of a program like `iptables-legacy-save`. `family` is that of nftables,
/// and `tool` the program that changes the rules.
pub(super) fn chains(text: &str, family: &str, tool: &'static str) -> Vec<Chain> {
    let (mut table, mut chains) = ("", Vec::<Chain>::new());
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if let Some(declared) = line.strip_prefix(':') {
            let mut words = declared.split(' ');
            let (name, policy) = (words.next().unwrap_or_default(), words.next());
            chains.push(Chain {
                family: family.to_owned(),
                table: table.to_owned(),
                name: name.to_owned(),
                // Chains of users have no policy.
                hook: (policy != Some("-")).then(|| name.to_lowercase()),
                is_dropping: policy == Some("DROP"),
                rules: Vec::new(),
                tool: Some(tool),
            });
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let mut words = words(rule).into_iter();
            let name = words.next().unwrap_or_default();
            let mut chains = chains.iter_mut();
            let chain = chains.find(|chain| chain.table == table && chain.name == name);
            if let Some(chain) = chain {
                chain.rules.push(expressions(words));
            }
        }
    }
    chains
}

/// Returns the words of a rule, without the quotation marks around some.
fn words(rule: &str) -> Vec<String> {
    let (mut words, mut word, mut is_quoted) = (Vec::new(), String::new(), false);
    for letter in rule.chars() {
        match letter {
            '"' => is_quoted = !is_quoted,
            ' ' if !is_quoted => words.push(std::mem::take(&mut word)),
            letter => word.push(letter),
        }
    }
    words.push(word);
    words
}

/// Returns the expressions of a rule. A condition that does not matter here is one without meaning.
fn expressions(mut words: impl Iterator<Item = String>) -> Value {
    let (mut all, mut operator, mut reverse_path) = (Vec::new(), "==", None);
    while let Some(word) = words.next() {
        let mut matches = |left: Value, right: Value| {
            let operator = std::mem::replace(&mut operator, "==");
            all.push(json!({ "match": { "op": operator, "left": left, "right": right } }));
        };
        let mut value = || words.next().unwrap_or_default();
        match word.as_str() {
            "!" => operator = "!=",
            "-i" => matches(json!({ "meta": { "key": "iifname" } }), pattern(&value())),
            "-o" => matches(json!({ "meta": { "key": "oifname" } }), pattern(&value())),
            "-s" => matches(json!({ "payload": { "field": "saddr" } }), prefix(&value())),
            "-d" => matches(json!({ "payload": { "field": "daddr" } }), prefix(&value())),
            "-p" => matches(json!({ "meta": { "key": "l4proto" } }), value().into()),
            "-m" => {
                let is_filter = value() == "rpfilter";
                reverse_path = is_filter
                    .then(|| (vec!["saddr", "iif"], true))
                    .or(reverse_path);
            }
            "--loose" => {
                if let Some((flags, _)) = &mut reverse_path {
                    flags.retain(|flag| *flag != "iif");
                }
            }
            "--invert" => {
                if let Some((_, finds)) = &mut reverse_path {
                    *finds = false;
                }
            }
            "--validmark" | "--accept-local" => {}
            "--comment" => drop(value()),
            "-g" => {
                all.push(json!({ "goto": { "target": value() } }));
                break;
            }
            "-j" => {
                all.extend(reverse_path.take().map(reverse_path_match));
                all.push(verdict(&value()));
                // The options of the target follow.
                break;
            }
            option if option.starts_with('-') => matches(json!({ "option": option }), Value::Null),
            _ => {}
        }
    }
    Value::Array(all)
}

fn reverse_path_match((flags, finds): (Vec<&str>, bool)) -> Value {
    let fib = json!({ "fib": { "result": "oif", "flags": flags } });
    json!({ "match": { "op": "==", "left": fib, "right": finds } })
}

/// Returns the pattern of an interface's name.
fn pattern(name: &str) -> Value {
    match name.strip_suffix('+') {
        Some(beginning) => format!("{beginning}*").into(),
        None => name.into(),
    }
}

fn prefix(text: &str) -> Value {
    let parts = text.split_once('/');
    match parts.and_then(|(address, length)| Some((address, length.parse::<u8>().ok()?))) {
        Some((address, length)) => json!({ "prefix": { "addr": address, "len": length } }),
        None => text.into(),
    }
}

fn verdict(target: &str) -> Value {
    match target {
        "NFQUEUE" => json!({ "queue": null }),
        "ACCEPT" | "DROP" | "REJECT" | "RETURN" => json!({ target.to_lowercase(): null }),
        chain => json!({ "jump": { "target": chain } }),
    }
}
