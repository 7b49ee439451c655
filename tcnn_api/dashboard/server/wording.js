// A server's advice in the words of the pages: `GET /jobs lists yours` becomes "the Runs page lists yours".

const WORDS = [
  [/(?:GET|POST) \/datasets/g, "the Data page"],
  [/(?:GET|POST) \/(?:checkpoints|weights)/g, "the Checkpoints page"],
  [/GET \/models/g, "the Model field"],
  [/GET \/jobs\/[^\s;]+\/(?:checkpoints|shares)/g, "the job’s page"],
  [/GET \/jobs\/\{id\}/g, "look at the job’s page"],
  [/GET \/jobs(?!\/)/g, "the Runs page"],
  [/POST \/transform/g, "Convert"],
  [/POST \/finetune/g, "Fine-tune"],
  [/POST \/evaluate/g, "Evaluate"],
];

export function forPages(text) {
  return WORDS.reduce((told, [advice, words]) => told.replace(advice, words), String(text));
}
