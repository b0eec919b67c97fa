// The table of episodes and the copies of tables. In: JSON in the page, or from the server that sent it (data-served).
// Out: rows, one episode beside the other models' on the same question. Text of models only ever becomes text nodes.
"use strict";
(() => {
  const PAGE = 25, LONG = 4000;
  const ODD = /<\|[^<>\n]{1,60}?\|>|<\/?(?:s|think|tools?|tool_call|tool_response|bos|eos|pad|unk|start_of_turn|end_of_turn)>|\[\/?(?:INST|TOOL_CALLS|AVAILABLE_TOOLS|TOOL_RESULTS)\]|[^\P{C}\n]|[\u2028\u2029\uFFFD]/gu;
  const SOURCE = 0, PLACE = 1, SEED = 2, SAMPLE = 3, REWARD = 4, KIND = 5, TURNS = 6, TOKENS = 7, SLICES = 8;
  const find = (selector, within = document) => within.querySelector(selector);
  const make = (tag, given = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(given))
      name.startsWith("on") ? element.addEventListener(name.slice(2), value) : element.setAttribute(name, value);
    element.append(...children);
    return element;
  };

  // ---- text that shows what is in it -----------------------------------------------------------------------------
  const written = (sign) => {
    if (sign.length > 2) return sign;
    const code = sign.codePointAt(0);
    return code === 0xfffd ? sign : code < 0x100 ? "\\x" + code.toString(16).padStart(2, "0") : "\\u" + code.toString(16).padStart(4, "0");
  };
  const plain = (text) => text.replace(ODD, written);
  const shown = (text, into) => {
    let from = 0;
    for (const match of text.matchAll(ODD)) {
      into.append(text.slice(from, match.index), make("mark", { class: "odd" }, written(match[0])));
      from = match.index + match[0].length;
    }
    into.append(text.slice(from));
    return into;
  };
  const body = (text) => {
    const turn = make("div", { class: "turn" });
    shown(text.slice(0, LONG), turn);
    if (text.length > LONG)
      turn.append(make("button", { type: "button", onclick: () => shown(text, (turn.replaceChildren(), turn)) },
        `… all ${text.length.toLocaleString("en")} characters`));
    return turn;
  };

  // ---- where episodes come from ----------------------------------------------------------------------------------
  const embedded = () => {
    const data = JSON.parse(find("#episodes-data").textContent), text = (number) => data.texts[number];
    const transcript = (row) => {
      const found = data.transcripts[row];
      if (!found) return null;
      const [messages, correct, faults, facts] = found;
      return { correct: text(correct), faults, facts,
        messages: messages.map(([role, content, ...calls]) => ({ role, content: text(content), calls: calls.map(text) })) };
    };
    const said = (row) => data.transcripts[row] ? [...data.transcripts[row][0].flatMap((each) => each.slice(1)), data.transcripts[row][1]] : [];
    const search = async (wanted) => {
      const fit = new Set(data.texts.flatMap((each, number) => each.toLowerCase().includes(wanted) ? [number] : []));
      return new Set(data.rows.flatMap((_, row) => said(row).some((number) => fit.has(number)) ? [row] : []));
    };
    return { data, search, transcripts: async (rows) => rows.map(transcript), fill: async () => {} };
  };
  const served = () => {
    const ask = async (path) => (await fetch(path)).json();
    const data = { sources: [], kinds: [], slices: [], rows: [], left_out: 0, total: 0 };
    const fill = async (grown) => {
      for (let more = true; more; grown(more)) {
        const { rows, ...words } = await ask(`rows?from=${data.rows.length}`);
        data.rows.push(...rows);
        Object.assign(data, words);
        more = rows.length > 0 && data.rows.length < data.total;
      }
    };
    return { data, fill, transcripts: (rows) => rows.length ? ask(`transcripts?rows=${rows}`) : [],
      search: async (wanted) => new Set(await ask(`search?text=${encodeURIComponent(wanted)}`)) };
  };

  // ---- folded parts: a link into one opens it --------------------------------------------------------------------
  const unfold = () => {
    for (let at = document.getElementById(location.hash.slice(1).split("?")[0]); at; at = at.parentElement)
      if (at.tagName === "DETAILS") at.open = true;
  };
  addEventListener("hashchange", unfold);
  unfold();

  // ---- the table -------------------------------------------------------------------------------------------------
  const start = (source) => {
    const section = find("#episodes"), form = find("form", section), table = find("table", section);
    const status = find(".found", section), pager = find(".pager", section), dialog = find("dialog", section);
    const data = source.data;
    let state = {}, list = [], drawn = 0, opened = null;
    const model = (row) => data.sources[row[SOURCE]][0], kind = (row) => data.kinds[row[KIND]];
    const id = (row) => `${data.sources[row[SOURCE]][1]}~${row[PLACE]}`;
    const isRight = (row) => row[REWARD] === 1;
    const columns = [
      ["question", null], ["model", model], ["answer", null], ["outcome", kind], ["reward", (row) => row[REWARD] ?? -1],
      ["turns", (row) => row[TURNS]], ["seed", (row) => row[SEED]], ["tokens", (row) => row[TOKENS] ?? -1],
    ];

    const read = () => {
      if (!location.hash.startsWith("#episodes")) return false;
      state = Object.fromEntries(new URLSearchParams(location.hash.slice("#episodes?".length)));
      return true;
    };
    const write = (change) => {
      const next = Object.entries({ ...state, ...change }).filter(([, value]) => value !== "" && value !== undefined);
      history.replaceState(null, "", `#episodes?${new URLSearchParams(next)}`);
      read();
      return draw();
    };

    const answers = new Map();
    let indexed = 0;
    const index = () => {
      for (; indexed < data.rows.length; indexed++) {
        const of = answers.get(id(data.rows[indexed]));
        of ? of.push(indexed) : answers.set(id(data.rows[indexed]), [indexed]);
      }
    };
    const pairs = (row) => {
      const [one, other, cell] = state.pair.split("~"), both = answers.get(id(row)).map((number) => data.rows[number]);
      if (!state.model && model(row) !== other) return false;  // one row a question
      const [before, after] = [one, other].map((name) => both.find((each) => model(each) === name));
      if (!before || !after || both.every((each) => kind(each) === "environment failed")) return false;
      return { both: [true, true], lost: [true, false], won: [false, true], neither: [false, false] }[cell]
        .every((right, place) => isRight([before, after][place]) === right);
    };
    const filtered = async () => {
      const found = state.text ? await source.search(state.text.toLowerCase()) : null;
      const kindOf = data.kinds.indexOf(state.kind), slice = data.slices.indexOf(state.slice);
      const fit = [];
      data.rows.forEach((row, number) => {
        if ((!state.model || model(row) === state.model) && (!state.asked || data.sources[row[SOURCE]][1] === state.asked)
          && (!state.right || String(isRight(row)) === state.right) && (!state.kind || row[KIND] === kindOf)
          && (!state.slice || row[SLICES].includes(slice)) && (!state.pair || pairs(row)) && (!found || found.has(number)))
          fit.push(number);
      });
      const [name, down] = (state.sort || "").split("~"), value = columns.find(([each]) => each === name)?.[1];
      if (!value) {  // what the last model did first
        const compared = data.sources.filter(([, set]) => set === data.sources[0][1]).length;
        const rank = (number) => { const source = data.rows[number][SOURCE]; return source < compared ? -source : source; };
        fit.sort((a, b) => rank(a) - rank(b) || a - b);
      }
      if (value) {
        const keys = new Map(fit.map((number) => [number, value(data.rows[number])]));
        fit.sort((a, b) => (keys.get(a) < keys.get(b) ? -1 : keys.get(a) > keys.get(b) ? 1 : a - b) * (down ? -1 : 1));
      }
      return fit;
    };

    const choice = (name, label, options) => {
      const all = options.some(([value]) => value === (state[name] ?? "")) ? options : [...options, [state[name], state[name]]];
      const select = make("select", { name, onchange: () => write({ [name]: select.value, page: "", open: "" }) },
        ...all.map(([value, text]) => make("option", { value }, plain(text))));
      select.value = state[name] ?? "";
      return make("label", {}, label, select);
    };
    const filters = () => {
      const any = (values) => [["", "any"], ...[...new Set(values)].map((value) => [value, value])];
      const models = [...new Set(data.sources.map(([name]) => name))], asked = [...new Set(data.sources.map(([, set]) => set))];
      const compared = data.sources.filter(([, set]) => set === asked[0]).map(([name]) => name);
      const told = compared.flatMap((one, place) => compared.slice(place + 1).flatMap((other) => [
        [`${one}~${other}~lost`, `${other} lost what ${one} had`], [`${one}~${other}~won`, `${other} won what ${one} missed`],
        [`${one}~${other}~both`, `${one} and ${other} right`], [`${one}~${other}~neither`, `neither ${one} nor ${other}`]])).reverse();
      const text = make("input", { name: "text", type: "search", value: state.text ?? "",
        onchange: () => write({ text: text.value, page: "", open: "" }) });
      const focused = form.contains(document.activeElement) ? document.activeElement.name : null;
      form.replaceChildren(choice("model", "Model", any(models)), choice("right", "Right or wrong", [["", "any"], ["true", "right"], ["false", "wrong"]]),
        choice("kind", "Outcome", any(data.kinds)), ...(data.slices.length ? [choice("slice", "Slice", any(data.slices))] : []),
        ...(asked.length > 1 ? [choice("asked", "Questions", any(asked))] : []),
        ...(told.length ? [choice("pair", "Two models", [["", "any"], ...told])] : []), make("label", {}, "Text", text),
        make("button", { type: "button", onclick: () => { state = {}; write({}); } }, "Clear"));
      if (focused) form.elements[focused]?.focus();
    };

    const counted = () => data.rows.some((row) => row[TOKENS] !== null);  // older code did not count tokens
    const head = () => make("thead", {}, make("tr", {}, ...columns.filter(([name]) => name !== "tokens" || counted()).map(([name, value]) => {
      const [by, down] = (state.sort || "").split("~"), sorted = by === name ? (down ? "descending" : "ascending") : "none";
      if (!value) return make("th", { scope: "col" }, name);
      const next = sorted === "ascending" ? `${name}~down` : sorted === "descending" ? "" : name;
      return make("th", { scope: "col", "aria-sort": sorted },
        make("button", { type: "button", onclick: () => write({ sort: next, page: "" }) }, name + { none: "", ascending: " ▲", descending: " ▼" }[sorted]));
    })));
    const brief = (text) => plain(text.replace(/\s+/g, " ").slice(0, 200)) || "(nothing)";
    const questionOf = (told) => told.messages.find((each) => each.role === "user")?.content ?? "";
    const saidOf = (told) => told.messages.filter((each) => each.role === "assistant").map((each) => [each.content, ...each.calls].filter(Boolean).join(" ")).join(" → ");
    const missing = "its text is too long for this page: apprentice view KEY shows it";
    const shared = (questions) => {  // how all of them begin, up to a word's end: it tells no row from another
      if (new Set(questions).size < 2) return 0;
      let same = 0;
      while (questions.every((each) => each[same] === questions[0][same])) same++;
      same = questions[0].lastIndexOf(" ", same - 1) + 1;
      return same > 12 ? same : 0;
    };
    const line = (number, told, skip) => {
      const row = data.rows[number], asked = told && questionOf(told).replace(/\s+/g, " ");
      const open = make("button", { type: "button", onclick: () => show(number) }, told ? (skip ? "… " : "") + brief(asked.slice(skip)) : `(${missing})`);
      return make("tr", {}, make("td", {}, open), make("td", {}, plain(model(row))), make("td", {}, told ? brief(saidOf(told)) : ""),
        make("td", { class: isRight(row) ? "good" : "bad" }, plain(kind(row))), make("td", {}, row[REWARD] === null ? "none" : String(+row[REWARD].toFixed(3))),
        make("td", {}, String(row[TURNS])), make("td", {}, String(row[SEED])), ...(counted() ? [make("td", {}, String(row[TOKENS] ?? "–"))] : []));
    };
    const draw = async () => {
      const turn = ++drawn;
      filters();
      const fit = await filtered(), page = Math.min(+state.page || 0, Math.max(0, Math.ceil(fit.length / PAGE) - 1));
      const numbers = fit.slice(page * PAGE, (page + 1) * PAGE), told = await source.transcripts(numbers);
      if (turn !== drawn) return;
      list = fit;
      const skip = shared(told.filter(Boolean).map((each) => questionOf(each).replace(/\s+/g, " ")));
      table.replaceChildren(make("caption", {}, "Choose a question to read what every model did with it"), head(), make("tbody", {}, ...numbers.map((number, place) => line(number, told[place], skip))));
      const waiting = data.total > data.rows.length ? `, reading ${data.total.toLocaleString("en")}` : "";
      const left = data.left_out ? `; ${data.left_out.toLocaleString("en")} more are not in this page: apprentice view KEY shows them` : "";
      status.textContent = `${fit.length.toLocaleString("en")} of ${data.rows.length.toLocaleString("en")} episodes${waiting}${left}`;
      const step = (by, name) => make("button", { type: "button", ...(by < 0 ? page > 0 : (page + 1) * PAGE < fit.length) ? {} : { disabled: "" }, onclick: () => write({ page: page + by }) }, name);
      pager.replaceChildren(...(fit.length > PAGE ? [step(-1, `Previous ${PAGE}`), ` ${page * PAGE + 1} to ${Math.min(fit.length, (page + 1) * PAGE)} `, step(1, `Next ${PAGE}`)] : []));
      if (state.open) {
        const [name, asked, place] = state.open.split("~");
        const number = data.rows.findIndex((row) => model(row) === name && id(row) === `${asked}~${place}`);
        if (number >= 0 && opened !== number) show(number);
      }
    };

    // ---- one question, every model -------------------------------------------------------------------------------
    const round = (value) => typeof value === "number" ? +value.toFixed(3) : value ?? "none";
    const fact = (name, value) => [make("dt", {}, name), make("dd", {}, plain(String(value)))];
    const column = (number, told) => {
      const row = data.rows[number], many = told && told.messages.length > 8;
      const facts = [["reward", row[REWARD] === null ? "none: the environment failed" : round(row[REWARD])]];
      if (told) facts.push(...Object.entries(told.facts).map(([name, value]) => [name.replaceAll("_", " "), round(value)]), ...told.faults.map((fault) => ["fault", fault]));
      facts.push(["turns", row[TURNS]]);
      const turns = told ? told.messages.map((each, place) => {
        const text = [each.content, ...each.calls.map((call) => `→ ${call}`)].filter(Boolean).join("\n");
        const fold = ["system", "user", "thought"].includes(each.role) || (many && place < told.messages.length - 2);
        return make("details", fold ? {} : { open: "" }, make("summary", {}, `${plain(each.role)}${each.role === "thought" ? `, ${text.length} characters` : ""}: ${brief(text).slice(0, 80)}`), body(text || "(nothing)"));
      }) : [missing];
      return make("section", {}, make("h3", {}, plain(model(row)), " ", make("span", { class: isRight(row) ? "good" : "bad" }, plain(kind(row)))), make("dl", {}, ...facts.flatMap(([name, value]) => fact(name, value))), ...turns);
    };
    const show = async (number) => {
      opened = number;
      const numbers = answers.get(id(data.rows[number])), told = await source.transcripts(numbers), place = list.indexOf(number);
      const known = told.find(Boolean), answer = told.find((each) => each?.correct)?.correct;
      const go = (by, name) => make("button", { type: "button", ...(list[place + by] === undefined ? { disabled: "" } : {}), onclick: () => show(list[place + by]) }, name);
      const title = make("h2", { id: "episode-title", tabindex: "-1" }, `Seed ${data.rows[number][SEED]}, ${plain(data.sources[data.rows[number][SOURCE]][1])}`);
      dialog.replaceChildren(make("div", { class: "tools" }, go(-1, "Previous"), go(1, "Next"), make("button", { type: "button", onclick: () => dialog.close() }, "Close")),
        title, make("h3", {}, "Question"), body(known ? questionOf(known) : missing), make("h3", {}, "The environment's answer"), body(answer || "(none was given)"),
        make("div", { class: "side" }, ...numbers.map((each, at) => column(each, told[at]))));
      if (!dialog.open) dialog.showModal();
      title.focus();
    };
    dialog.addEventListener("close", () => { opened = null; if (state.open) write({ open: "" }); });

    form.addEventListener("submit", (event) => { event.preventDefault(); });
    addEventListener("hashchange", () => { if (read()) { draw(); section.scrollIntoView(); } });
    read();
    index();
    let first = true;
    source.fill((more) => {
      index();
      if (first || !more) draw();  // in between a redraw would close what a reader has opened
      else status.textContent = `reading: ${data.rows.length.toLocaleString("en")} of ${data.total.toLocaleString("en")} episodes`;
      first = false;
    });
    if (data.rows.length) draw();
    if (location.hash.startsWith("#episodes?")) section.scrollIntoView();
  };

  // ---- copies of tables ------------------------------------------------------------------------------------------
  const flat = (value, name, into) => {
    if (value !== null && typeof value === "object")
      for (const [key, each] of Object.entries(value)) flat(each, name ? `${name}.${key}` : key, into);
    else into[name] = value;
    return into;
  };
  const cells = (rows) => {
    const lines = rows.map((row) => flat(row, "", {})), names = [...new Set(lines.flatMap(Object.keys))];
    return [names, ...lines.map((line) => names.map((name) => line[name] ?? ""))];
  };
  const quoted = (value) => /[",\n\r]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : String(value);
  for (const tools of document.querySelectorAll(".tools[data-name]")) {
    const rows = JSON.parse(find("script", tools).textContent), name = tools.dataset.name;
    const copy = make("button", { type: "button", "aria-label": `Copy ${name}`, onclick: async () => {
      await navigator.clipboard.writeText(cells(rows).map((line) => line.join("\t")).join("\n"));
      copy.textContent = "Copied";
    } }, "Copy");
    const save = make("button", { type: "button", "aria-label": `Save ${name} as CSV`, onclick: () => {
      const text = cells(rows).map((line) => line.map(quoted).join(",")).join("\r\n");
      const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: `${name}.csv` });
      link.click();
      URL.revokeObjectURL(link.href);
    } }, "CSV");
    if (rows.length) tools.append(copy, save);
  }
  if (find("#episodes")) start(document.body.dataset.served === undefined ? embedded() : served());
})();
