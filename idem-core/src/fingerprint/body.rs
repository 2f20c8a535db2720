/// How the header fields of a request say that its body is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    Json,
    Form,
    /// Nothing is known of the meaning.
    Opaque,
    /// Compressed or otherwise coded: two codings of one content are not recognised as such.
    Coded,
}

impl Reading {
    pub(super) fn of(content_type: Option<&str>, content_encoding: Option<&str>) -> Self {
        if content_encoding.is_some_and(is_coded) {
            return Self::Coded;
        }
        let Some(content_type) = content_type else {
            return Self::Opaque;
        };
        let mut parts = content_type.split(';');
        let media_type = parts.next().unwrap_or_default().trim();
        // In any other character set the same bytes would be other text.
        if !parts.all(is_utf8_or_no_charset) {
            return Self::Opaque;
        }
        if media_type.eq_ignore_ascii_case("application/json") || has_json_suffix(media_type) {
            Self::Json
        } else if media_type.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
            Self::Form
        } else {
            Self::Opaque
        }
    }
}

fn is_coded(content_encoding: &str) -> bool {
    content_encoding
        .split(',')
        .map(str::trim)
        .any(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case("identity"))
}

fn has_json_suffix(media_type: &str) -> bool {
    media_type.split_once('/').is_some_and(|(_, subtype)| {
        subtype
            .rsplit_once('+')
            .is_some_and(|(_, suffix)| suffix.eq_ignore_ascii_case("json"))
    })
}

fn is_utf8_or_no_charset(parameter: &str) -> bool {
    let Some((name, value)) = parameter.split_once('=') else {
        return true;
    };
    let value = value.trim().trim_matches('"');
    !name.trim().eq_ignore_ascii_case("charset")
        || ["utf-8", "utf8", "us-ascii"]
            .iter()
            .any(|known| value.eq_ignore_ascii_case(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_media_type_decides() {
        for (content_type, reading) in [
            ("application/json", Reading::Json),
            ("Application/JSON ; charset=UTF-8", Reading::Json),
            ("application/json;charset=\"utf-8\"", Reading::Json),
            ("application/vnd.api+json", Reading::Json),
            ("application/merge-patch+JSON", Reading::Json),
            ("application/x-www-form-urlencoded", Reading::Form),
            (
                "application/x-www-form-urlencoded; charset=utf8",
                Reading::Form,
            ),
            ("application/json; charset=utf-16", Reading::Opaque),
            ("application/jsonl", Reading::Opaque),
            ("application/x-ndjson", Reading::Opaque),
            ("text/plain", Reading::Opaque),
            ("+json", Reading::Opaque),
            ("", Reading::Opaque),
        ] {
            assert_eq!(
                Reading::of(Some(content_type), None),
                reading,
                "{content_type}"
            );
        }
        assert_eq!(Reading::of(None, None), Reading::Opaque);
    }

    #[test]
    fn a_content_coding_comes_before_the_media_type() {
        for (coding, reading) in [
            ("gzip", Reading::Coded),
            ("identity, br", Reading::Coded),
            ("identity", Reading::Json),
            ("Identity ,identity", Reading::Json),
            ("", Reading::Json),
        ] {
            assert_eq!(
                Reading::of(Some("application/json"), Some(coding)),
                reading,
                "{coding}"
            );
        }
    }
}
