// Runs the viewer of DHAT on a file, with a page of nodes that only keep text. Prints the sums of
// the viewer's tree, and the text of the whole page.
//
//	node dh_view.mjs DH_VIEW_JS FILE
import { readFileSync } from "node:fs";
import vm from "node:vm";

class Element {
  constructor() {
    this.childNodes = [];
    this.style = {};
    this.classList = { add() {}, remove() {}, toggle() {}, contains: () => false };
  }
  get selectedIndex() { return this.childNodes.findIndex((option) => option.selected); }
  get firstChild() { return this.childNodes[0]; }
  get lastChild() { return this.childNodes[this.childNodes.length - 1]; }
  get parentNode() { return this; }
  get textContent() {
    return (this.text ?? "") + this.childNodes.map((node) => node.textContent).join("");
  }
  set textContent(text) { this.childNodes = []; this.text = text; }
  appendChild(node) { this.childNodes.push(node); return node; }
  removeChild(node) { this.childNodes = this.childNodes.filter((other) => other !== node); }
  replaceChild(node) { this.childNodes = [node]; }
  cloneNode() { return new Element(); }
  addEventListener() {}
  setAttribute() {}
}

const [viewer, file] = process.argv.slice(2);
const body = new Element();
const text = (text) => Object.assign(new Element(), { text });
const document = {
  body,
  location: { search: "" },
  createElement: () => new Element(),
  createTextNode: text,
  createDocumentFragment: () => new Element(),
  addEventListener() {},
};
const page = vm.createContext({ document, performance, URLSearchParams, window: {} });
vm.runInContext(readFileSync(viewer, "utf8"), page);
page.json = readFileSync(file, "utf8");
vm.runInContext("onLoad(); gData = JSON.parse(json); buildTree(); displayTree();", page);
const result = vm.runInContext(
  "({ bytes: gRoot._totalBytes, blocks: gRoot._totalBlocks })", page);
process.stdout.write(JSON.stringify({ ...result, text: body.textContent }));
